"""The comparison runner, end to end on tiny models, and the arithmetic behind its figures."""

import json

import pytest
import torch

from benchmarks import losslessness, paired, side_by_side, summary
from benchmarks.off_topic import off_topic_prompts
from benchmarks.paired import Record
from benchmarks.prompts import Prompt, held_out_prompts
from dspark_hf.baselines import Eagle3Drafter, eagle3_config
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.dev.tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target, a drafter and two sets of prompts on disk."""
    root = tmp_path_factory.mktemp("side_by_side")
    target = tiny_target("qwen3")
    target.save_pretrained(root / "target")
    tiny_tokenizer().save_pretrained(root / "target")
    tiny_drafter(target).save_pretrained(root / "drafter")
    (root / "prompts").mkdir()
    for name in ("math", "code"):
        lines = [json.dumps({"turns": [f"{name} question {chr(97 + index)}"]}) for index in range(10)]
        (root / "prompts" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return root


def test_one_command_writes_figures_for_every_method_temperature_and_batch(folder, capsys):
    output = folder / "results" / "report.json"
    side_by_side.main(
        [
            *("--target", str(folder / "target"), "--prompts", str(folder / "prompts")),
            *("--drafter", f"dspark={folder / 'drafter'}", "--policies", "full", "full:2", "threshold=0.5"),
            *("--prompt-lookup", "3", "--truncated", "2", "--dtype", "float32"),
            *("--temperatures", "0", "1", "--batches", "1", "2", "--max-new-tokens", "10", "--output", str(output)),
        ]
    )
    report = json.loads(output.read_text())
    entries = {(e["method"], e["temperature"], e["batch"], e["suite"]): e for e in report["summary"]}
    methods = {"plain", "prompt lookup 3", "assisted, first 2 layers"}
    drafted = {f"dspark {policy}" for policy in ("full", "full:2", "threshold=0.5")}
    assert {key[0] for key in entries if key[2] == 1} == methods | drafted
    assert {key[0] for key in entries if key[2] == 2} == {"plain"} | drafted
    assert {key[3] for key in entries} == {"all", "held-out", "math", "code"}
    full = entries["dspark full", 0.0, 1, "all"]
    assert full["groups"] == 4
    assert 1 <= full["accepted_length"] <= 6
    assert full["ratio_interval"][0] <= full["ratio_to_plain"] <= full["ratio_interval"][1]
    assert len(full["acceptance_by_slot"]) == 5
    assert len(entries["dspark full:2", 0.0, 1, "all"]["acceptance_by_slot"]) == 2
    for compared in report["greedy_text_against_plain"]:
        assert compared["identical"] == 4, compared
        assert compared["near_ties"] == compared["mismatches"] == 0
    assert "| dspark full |" in output.with_suffix(".md").read_text()
    assert output.with_suffix(".png").stat().st_size > 10_000
    assert "accepted length" in capsys.readouterr().out


def test_a_serial_drafter_takes_part_with_whole_drafts_only(folder):
    target = tiny_target("qwen3")
    text = target.config
    sizes = {"vocab_size": text.vocab_size, "hidden_size": text.hidden_size, "intermediate_size": 32, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "target_layer_ids": [0, 1], "block_size": 2}
    Eagle3Drafter(eagle3_config(**sizes, num_target_layers=text.num_hidden_layers)).save_pretrained(folder / "eagle3")
    output = folder / "serial.json"
    side_by_side.main(
        [
            *("--target", str(folder / "target"), "--prompts", str(folder / "prompts"), "--dtype", "float32"),
            *("--drafter", f"eagle3={folder / 'eagle3'}", "--policies", "full", "auto", "--temperatures", "0"),
            *("--per-set", "1", "--max-new-tokens", "4", "--output", str(output)),
        ]
    )
    report = json.loads(output.read_text())
    assert {entry["method"] for entry in report["summary"]} == {"plain", "eagle3 full"}
    assert report["greedy_text_against_plain"][0]["identical"] == 2


def test_only_the_last_part_of_every_file_is_asked(folder):
    found = held_out_prompts(folder / "prompts", tiny_tokenizer(), fraction=0.3, per_set=2)
    assert [(prompt.suite, prompt.line) for prompt in found] == [("code", 7), ("code", 8), ("math", 7), ("math", 8)]
    assert [prompt.weight for prompt in found] == [1.5] * 4


def test_off_topic_prompts_are_their_own_sets_and_the_same_every_time():
    found = off_topic_prompts(tiny_tokenizer(), 3)
    assert [prompt.suite for prompt in found] == ["random strings"] * 3 + ["other languages"] * 3
    assert found == off_topic_prompts(tiny_tokenizer(), 3)
    assert len({prompt.ids for prompt in found}) == 6


def test_a_run_without_prompts_is_refused(capsys):
    with pytest.raises(SystemExit):
        side_by_side.main(["--target", "t", "--output", "o.json"])
    assert "give --prompts FOLDER or --off-topic N" in capsys.readouterr().err


def test_a_line_ends_at_a_newline_and_at_no_other_separator(tmp_path):
    lines = [json.dumps({"turns": [f"a{separator}b"]}, ensure_ascii=False) for separator in "\u2028\u2029\x85"]
    (tmp_path / "chat.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert len(held_out_prompts(tmp_path, tiny_tokenizer(), fraction=1.0)) == 3


def test_a_folder_without_prompts_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no .jsonl file"):
        held_out_prompts(tmp_path, tiny_tokenizer())


def test_a_ratio_is_over_pairs_and_tau_over_rounds():
    records = [
        Record("plain", "math", 0, 0.0, 1, 10, 2.0),
        Record("dspark full", "math", 0, 0.0, 1, 10, 1.0, rounds=[(4, 4, 1), (4, 4, 4)]),
        Record("plain", "math", 1, 0.0, 1, 30, 6.0),
        Record("dspark full", "math", 1, 0.0, 1, 30, 2.0, rounds=[(4, 4, 0)]),
    ]
    entry = next(e for e in summary.summarize(records) if e["method"] == "dspark full" and e["suite"] == "all")
    assert entry["ratio_to_plain"] == pytest.approx((40 / 3) / (40 / 8), rel=1e-3)
    assert entry["accepted_length"] == pytest.approx((2 + 5 + 1) / 3, rel=1e-3)
    assert entry["acceptance_by_slot"] == [0.6667, 0.5, 1.0, 1.0]
    assert entry["trials_by_slot"] == [3, 2, 1, 1]


def test_a_measured_prompt_counts_as_often_as_it_stands_for_others():
    records = [
        Record("plain", "math", 0, 0.0, 1, 10, 2.0, weight=9.0),
        Record("dspark full", "math", 0, 0.0, 1, 10, 1.0, weight=9.0, rounds=[(4, 4, 1)]),
        Record("plain", "chat", 1, 0.0, 1, 10, 2.0),
        Record("dspark full", "chat", 1, 0.0, 1, 10, 2.0, rounds=[(4, 4, 0), (4, 4, 0)]),
    ]
    entry = next(e for e in summary.summarize(records) if e["method"] == "dspark full" and e["suite"] == "held-out")
    assert entry["ratio_to_plain"] == pytest.approx((100 / 11) / (100 / 20), rel=1e-3)
    assert entry["accepted_length"] == pytest.approx((9 * 2 + 2) / (9 + 2), rel=1e-3)
    assert entry["acceptance_by_slot"][:2] == [pytest.approx(9 / 11, rel=1e-3), 0.0]


def test_a_difference_without_a_near_tie_is_a_mismatch():
    target = tiny_target("qwen3")
    prompt = Prompt("math", 0, (3, 4, 5))
    with torch.no_grad():
        order = target(torch.tensor([prompt.ids])).logits[0, -1].argsort(descending=True).tolist()
    groups = [[prompt]]

    def counts(token):
        records = [
            Record("plain", "math", 0, 0.0, 1, 1, 1.0, outputs=[[order[0]]]),
            Record("other", "math", 0, 0.0, 1, 1, 1.0, outputs=[[token]]),
        ]
        return losslessness.compare(target, records, groups, "other")

    assert counts(order[0]).identical == 1
    assert counts(order[-1]).mismatches == 1


def test_groups_hold_prompts_of_one_set_and_nothing_incomplete():
    asked = [Prompt("a", i, (1,) * (5 - i)) for i in range(5)] + [Prompt("b", 0, (1,))]
    assert [[prompt.line for prompt in group] for group in paired.batches(asked, 2)] == [[4, 3], [2, 1]]
