"""Answers: the target's own text, turn by turn, in process, by a server and from the data; resumed by id."""

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from training_runs import kill_at

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.answers import answer_in_process, plan_batches
from dspark_hf.training.data import Conversation
from dspark_hf.training.prepare import end_token_ids, prepare_rows, sampling_of
from dspark_hf.training.recipe import DataSection
from dspark_hf.training.rendering import Renderer
from dspark_hf.training.rows import RowReport, RowStore
from dspark_hf.training.server import CompletionServer, ServerError, answer_by_server


def chats(count=6, turns=2, answers=False):
    found = []
    for index in range(count):
        messages = []
        for turn in range(turns):
            messages.append({"role": "user", "content": f"q{index}{turn}" * (index + 1)})
            if answers:
                messages.append({"role": "assistant", "content": f"a{turn}"})
        found.append(Conversation(id=f"c{index}", messages=tuple(messages)))
    return found


@pytest.fixture
def target():
    model = tiny_target("qwen3", vocab_size=260, eos_token_id=3)
    model.generation_config.eos_token_id = 3
    return model


def settings(**overrides):
    return DataSection(**({"max_new_tokens": 8, "batch_size": 3, "temperature": 1.0, "seed": 1} | overrides))


def prepare(target, tokenizer, folder, conversations=None, **overrides):
    data = settings(**overrides)
    return prepare_rows(
        target, tokenizer, chats() if conversations is None else conversations, folder, data=data, target_name="toy@1"
    )


def test_each_turn_becomes_a_row_with_its_provenance(target, make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("chat")
    rows = prepare(target, tokenizer, tmp_path)
    assert [row.id for row in rows] == [f"c{i}#{turn}" for i in range(6) for turn in range(2)]
    for row in rows:
        assert row.generator == "toy@1"
        assert json.loads(row.sampling)["temperature"] == 1.0
        assert len(row.template_hash) == 16
        assert (row.completion_ids[-1] == 3) == (row.finish_reason == "stop")
        assert 3 not in row.completion_ids[:-1]
    assert {row.finish_reason for row in rows} == {"length"} or len({row.finish_reason for row in rows}) == 2


def test_the_history_of_a_second_turn_is_what_the_target_answered(target, make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("chat")
    rows = {row.id: row for row in prepare(target, tokenizer, tmp_path)}
    answer = tokenizer.decode(rows["c2#0"].completion_ids, skip_special_tokens=True)
    assert f"<|im_start|>assistant\n{answer}<|im_end|>" in tokenizer.decode(rows["c2#1"].prompt_ids)


def test_greedy_rows_equal_plain_generate(target, make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("chat")
    for row in prepare(target, tokenizer, tmp_path, temperature=0.0, batch_size=1):
        prompt = torch.tensor([row.prompt_ids])
        output = target.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=3, pad_token_id=0)
        assert output[0, prompt.shape[1] :].tolist() == list(row.completion_ids)


def test_a_run_that_lost_any_shard_ends_with_the_same_sampled_rows(target, make_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("dspark_hf.training.answers.FLUSH_SECONDS", 0.0)
    tokenizer = make_tokenizer("chat")
    whole = prepare(target, tokenizer, tmp_path / "whole")
    for lost in range(2):
        folder = tmp_path / f"cut{lost}"
        prepare(target, tokenizer, folder)
        (folder / "prepared.json").unlink()
        RowStore(folder).shards()[lost].unlink()
        assert prepare(target, tokenizer, folder) == whole


def test_killed_at_random_moments_the_answers_end_the_same(target, make_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("dspark_hf.training.answers.FLUSH_SECONDS", 0.0)
    tokenizer, conversations = make_tokenizer("chat"), chats(12)
    started = time.monotonic()
    whole = prepare(target, tokenizer, tmp_path / "whole", conversations)
    duration = time.monotonic() - started
    chance = random.Random(0)
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        for _ in range(3):
            kill_at(
                duration * chance.uniform(0.1, 0.5),
                lambda folder=folder: prepare(target, tokenizer, folder, conversations),
            )
        assert prepare(target, tokenizer, folder, conversations) == whole


def test_batches_do_not_depend_on_what_is_already_done(make_tokenizer):
    renderer = Renderer(make_tokenizer("chat"))
    one = [[item.id for item in batch] for batch in plan_batches(chats(7), renderer, 3)]
    two = [[item.id for item in batch] for batch in plan_batches(list(reversed(chats(7))), renderer, 3)]
    assert one == two
    assert sorted(name for batch in one for name in batch) == [f"c{i}" for i in range(7)]


def test_conversations_of_several_turns_share_batches(make_tokenizer):
    several = {"c1", "c4", "c6"}
    one, two = chats(9, turns=1), chats(9, turns=2)
    asked = [two[i] if two[i].id in several else one[i] for i in range(9)]
    batches = plan_batches(asked, Renderer(make_tokenizer("chat")), 3)
    assert several in [{item.id for item in batch} for batch in batches]


def test_other_settings_are_refused_in_the_same_folder(target, make_tokenizer, tmp_path):
    prepare(target, make_tokenizer("chat"), tmp_path)
    with pytest.raises(ValueError, match="was made with sampling="):
        prepare(target, make_tokenizer("chat"), tmp_path, temperature=0.5)
    with pytest.raises(ValueError, match="was made with template_hash="):
        prepare(target, make_tokenizer("thinking"), tmp_path)


def test_a_prompt_over_the_limit_is_counted_and_the_rest_goes_on(target, make_tokenizer, tmp_path):
    report = RowReport()
    data = settings(max_prompt_tokens=50)
    rows = prepare_rows(target, make_tokenizer("chat"), chats(), tmp_path, data=data, target_name="toy", report=report)
    assert report.skipped["prompt longer than 50 tokens"] == 6
    assert 0 < len(rows) < 12


def test_ready_answers_are_marked_off_policy(target, make_tokenizer, tmp_path, caplog):
    import transformers

    transformers.utils.logging.enable_propagation()
    rows = prepare(target, make_tokenizer("chat"), tmp_path, chats(answers=True), ready_answers=True)
    transformers.utils.logging.disable_propagation()
    assert "off-policy" in caplog.text
    assert len(rows) == 12
    assert {row.generator for row in rows} == {""}
    assert all(row.completion_ids[-1] == 3 for row in rows)


def test_a_template_without_answer_text_is_an_error_and_not_an_empty_data_set(target, make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("chat")
    tokenizer.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(ValueError, match="Not one training row .* renders no answer text"):
        prepare(target, tokenizer, tmp_path, chats(answers=True), ready_answers=True)


class FakeServer:
    """Answers `ab<|im_end|>`-like ids; fails as told."""

    def __init__(self, *, fail_first=0, status=503, answer=None):
        self.requests, self.prompts, self.fail_first, self.status = 0, [], fail_first, status
        self.answer = answer or {"token_ids": [70, 71, 3], "text": "bc", "finish_reason": "stop"}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests += 1
                outer.prompts.append(body["prompt"])
                failing = outer.requests <= outer.fail_first
                payload = json.dumps({"error": "busy"} if failing else {"choices": [outer.answer]}).encode()
                self.send_response(outer.status if failing else 200)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"


def ask(server, tokenizer, folder, count=4, retries=3):
    renderer = Renderer(tokenizer, end_ids=[3])
    client = CompletionServer(server.url, "toy", retries=retries, backoff=0.001)
    report = RowReport()
    store = RowStore(folder)
    answer_by_server(
        client, renderer, chats(count), store, sampling=sampling_of(settings()), generator="toy", report=report
    )
    return store.read(), report


def test_a_server_is_asked_with_token_ids_and_retried_when_busy(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer("chat")
    with FakeServer(fail_first=3) as server:
        rows, _ = ask(server, tokenizer, tmp_path)
    assert [row.id for row in rows] == [f"c{i}#{turn}" for i in range(4) for turn in range(2)]
    assert {tuple(row.completion_ids) for row in rows} == {(70, 71, 3)}
    assert all(row.token_exact for row in rows)
    assert server.requests == 3 + 8
    assert all(isinstance(token, int) for prompt in server.prompts for token in prompt)


def test_a_server_run_is_resumed_by_id(make_tokenizer, tmp_path):
    with FakeServer() as server:
        ask(server, make_tokenizer("chat"), tmp_path, count=3)
        before = server.requests
        rows, _ = ask(server, make_tokenizer("chat"), tmp_path, count=5)
    assert server.requests - before == 2 * 2
    assert len({row.id for row in rows}) == len(rows) == 10


@pytest.mark.parametrize(
    ("answer", "ids", "finish", "exact"),
    [
        ({"text": "bc", "finish_reason": "stop"}, [70, 71, 3], "stop", False),
        ({"text": "bc", "finish_reason": "length"}, [70, 71], "length", False),
        ({"token_ids": [70, 71], "finish_reason": "stop"}, [70, 71, 3], "stop", True),
        ({"token_ids": [70, 71], "finish_reason": "length"}, [70, 71], "length", True),
        ({"logprobs": {"tokens": ["token_id:70", "token_id:3"]}, "finish_reason": "stop"}, [70, 3], "stop", True),
    ],
)
def test_a_truncated_server_answer_gets_no_end_of_turn_and_a_finished_one_does(
    make_tokenizer, tmp_path, answer, ids, finish, exact
):
    tokenizer = make_tokenizer("chat")
    expected = [tokenizer.convert_tokens_to_ids(c) if isinstance(c, str) else c for c in ids]
    if not exact:
        expected[:2] = tokenizer("bc")["input_ids"]
    with FakeServer(answer=answer) as server:
        rows, _ = ask(server, tokenizer, tmp_path, count=1)
    assert (list(rows[0].completion_ids), rows[0].finish_reason, rows[0].token_exact) == (expected, finish, exact)


def test_a_server_that_never_answers_and_one_that_refuses_are_told_apart(make_tokenizer, tmp_path):
    with (
        FakeServer(fail_first=99) as server,
        pytest.raises(ServerError, match="after 2 tries; last problem: status 503"),
    ):
        ask(server, make_tokenizer("chat"), tmp_path, retries=1)
    with FakeServer(fail_first=99, status=400) as server, pytest.raises(ValueError, match=r"refused .*busy"):
        ask(server, make_tokenizer("chat"), tmp_path)


def test_end_tokens_are_those_of_generate_and_the_tokenizer(target, make_tokenizer):
    assert end_token_ids(target, make_tokenizer("chat", eos="<eos>")) == [1, 3]


def test_progress_counts_conversations(target, make_tokenizer, tmp_path):
    seen = []
    answer_in_process(
        target,
        Renderer(make_tokenizer("chat"), end_ids=[3]),
        chats(4, turns=1),
        RowStore(tmp_path),
        sampling=sampling_of(settings()),
        generator="toy",
        batch_size=3,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(3, 4), (4, 4)]
