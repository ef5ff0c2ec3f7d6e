"""The check tells a drafter that fits from one that does not, and why."""

import json

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dspark_hf.cli import cli
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.hub.check import check_pair


def tokenizer(chat=True, size=60):
    vocabulary = {f"w{index}": index for index in range(size)}
    core = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="w1")
    made.chat_template = "{% for m in messages %}w2 {{ m.content }} w3{% endfor %}" if chat else None
    return made


def found(report, about):
    return [(finding.level, finding.text) for finding in report.findings if finding.about == about]


@pytest.fixture(scope="module")
def pair():
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
    return target, drafter


def test_a_drafter_that_fits_is_said_to_fit(pair):
    target, drafter = pair
    report = check_pair(target, drafter, tokenizer())
    assert report.fits
    assert report.accepted_length > 2
    assert report.rounds == 8 * 11
    assert found(report, "embedding") == [("ok", "equal to the target's; drafter.tie_to(target) holds it once")]
    assert found(report, "sizes")[0][0] == "ok"


def test_a_random_drafter_is_said_not_to_fit(pair):
    report = check_pair(pair[0], tiny_drafter(pair[0], seed=3, bigram=False), tokenizer())
    assert not report.fits
    assert found(report, "self-test")[0][0] == "problem"
    assert report.accepted_length < 1.15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 48}, "hidden size 32, this target has 48"),
        ({"vocab_size": 70}, "vocabulary 64, this target has 70"),
        ({"num_hidden_layers": 5}, "of 4 layers, this one has 5"),
    ],
)
def test_a_target_of_another_size_is_a_problem_and_nothing_is_run(pair, change, message):
    report = check_pair(tiny_target("qwen3", **change), pair[1])
    assert not report.fits
    assert message in found(report, "sizes")[0][1]
    assert report.accepted_length is None


def test_a_fine_tuned_target_shows_in_the_embedding(pair):
    other = tiny_target("qwen3")
    with torch.no_grad():
        other.get_input_embeddings().weight.add_(torch.randn_like(other.get_input_embeddings().weight), alpha=0.05)
    ((level, text),) = found(check_pair(other, pair[1], self_test=False), "embedding")
    assert level == "doubt"
    assert "trained for another checkpoint" in text


def test_an_embedding_that_is_scaled_is_the_targets(pair):
    drafter = tiny_drafter(pair[0])
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(pair[0].get_input_embeddings().weight * 32**0.5)
    report = check_pair(pair[0], drafter, self_test=False)
    assert found(report, "embedding") == [("ok", "the target's, multiplied by 5.657")]


def test_a_base_model_and_another_name_are_told(pair):
    target, drafter = tiny_target("qwen3"), tiny_drafter(tiny_target("qwen3"))
    drafter.config.target_name_or_path = "Qwen/Qwen3-4B"
    target.config.name_or_path = "Qwen/Qwen3-4B-Base"
    report = check_pair(target, drafter, tokenizer(chat=False), self_test=False)
    assert [level for level, _ in found(report, "target")] == ["doubt", "doubt"]
    assert "base model" in found(report, "target")[1][1]
    drafter.config.target_thinking = False
    target.config.name_or_path = "/somewhere/Qwen3-4B"
    report = check_pair(target, drafter, tokenizer(), self_test=False)
    assert found(report, "target")[0][0] == "ok"
    assert "thinking mode off" in found(report, "thinking")[0][1]


def test_a_quantised_target_is_told(pair):
    target = tiny_target("qwen3")
    target.config.quantization_config = {"quant_method": "torchao"}
    assert "torchao" in found(check_pair(target, pair[1], self_test=False), "quantisation")[0][1]

    plain = tiny_target("qwen3")
    plain.lm_head.weight = torch.nn.Parameter(torch.zeros(64, 32, dtype=torch.int8), requires_grad=False)
    report = check_pair(plain, pair[1], self_test=False)
    assert "int8" in found(report, "quantisation")[0][1]
    assert "not in floats" in found(report, "head")[0][1]


def test_a_mask_token_that_is_a_word_is_told(pair):
    drafter = tiny_drafter(pair[0], mask_token_id=5)
    assert (
        "ordinary token 'w5'" in found(check_pair(pair[0], drafter, tokenizer(), self_test=False), "mask token")[0][1]
    )


def memoryless_target():
    """Its next token depends on the last one alone."""
    target = tiny_target("qwen3")
    with torch.no_grad():
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return target


def taught(target, anchor_first):
    """A block drafter without Markov head, trained for some seconds on what follows each token in the target."""
    drafter = tiny_drafter(
        target,
        bigram=False,
        markov_rank=0,
        confidence_head_with_markov=False,
        enable_confidence_head=False,
        block_size=3,
        sample_from_anchor=anchor_first,
    )
    with torch.no_grad():
        chain = [torch.arange(64)]
        for _ in range(3):
            chain.append(target(chain[-1][:, None]).logits[:, -1].argmax(dim=-1))
    labels = torch.stack(chain[1 : 1 + drafter.config.num_slots], dim=1)
    drafter.train()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-2)
    for _ in range(80):
        hidden = drafter(drafter.make_block(chain[0]), torch.randn(64, 2, 96))
        logits = drafter.base_logits(drafter.slot_hidden(hidden))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.eval()


# https://github.com/vllm-project/vllm/issues/56792: healthy checkpoints with hardly any acceptance and no warning
@pytest.mark.parametrize("anchor_first", [True, False])
def test_a_wrong_layout_flag_is_found_out(anchor_first):
    target = memoryless_target()
    drafter = taught(target, anchor_first)
    right = check_pair(target, drafter)
    drafter.config.sample_from_anchor = not anchor_first
    wrong = check_pair(target, drafter)

    assert right.fits
    assert right.accepted_length > wrong.accepted_length + 0.5
    assert not wrong.fits
    assert any(f"with sample_from_anchor={anchor_first} it would be" in text for _, text in found(wrong, "layout"))


def test_the_command_reports_in_words_and_in_json(pair, tmp_path):
    target, drafter = pair
    target.save_pretrained(tmp_path / "target")
    tokenizer().save_pretrained(tmp_path / "target")
    drafter.save_pretrained(tmp_path / "drafter")
    done = CliRunner().invoke(cli, ["check", str(tmp_path / "target"), str(tmp_path / "drafter")])
    assert done.exit_code == 0, done.output
    assert "The drafter fits this target." in done.output
    told = CliRunner().invoke(
        cli, ["check", str(tmp_path / "target"), str(tmp_path / "drafter"), "--json", "--no-self-test"]
    )
    held = json.loads(told.output[told.output.index("{") :])
    assert held["fits"] is True
    assert held["accepted_length"] is None


def test_the_command_exits_with_1_where_it_does_not_fit_and_2_where_it_cannot_open(golden, pair, tmp_path):
    target = str(golden / "qwen3-vanilla" / "target")
    pair[1].save_pretrained(tmp_path / "drafter")
    done = CliRunner().invoke(cli, ["check", target, str(tmp_path / "drafter")])
    assert done.exit_code == 1
    assert "does not fit" in done.output
    for arguments in ([target, target], [target, str(tmp_path / "a" / "b")], [str(tmp_path / "a" / "b"), target]):
        done = CliRunner().invoke(cli, ["check", *arguments])
        assert done.exit_code == 2, done.output
        assert len(done.output.strip().splitlines()) == 1


def test_a_drafter_that_borrows_is_checked_with_its_target(golden):
    target = str(golden / "qwen3-vanilla" / "target")
    for name in ("speculators-dspark-vanilla", "speculators-dflash"):
        done = CliRunner().invoke(cli, ["check", target, str(golden / name / "drafter"), "--no-self-test", "--json"])
        held = json.loads(done.output[done.output.index("{") :])
        assert [item["level"] for item in held["findings"] if item["about"] in ("embedding", "head")] == ["ok", "ok"]
