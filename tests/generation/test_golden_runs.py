"""The reference implementation's own greedy runs: text, and proposed and accepted length of every round."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import dspark_hf


FOLDERS = [f"{body}-{head}" for body in ("qwen3", "gemma4") for head in ("vanilla", "gated", "rnn", "none")]


@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy_runs_equal_the_reference_round_by_round(folder, golden):
    facts = json.loads((golden / folder / "golden.json").read_text())
    target = AutoModelForCausalLM.from_pretrained(golden / folder / "target").eval()
    drafter = dspark_hf.DSparkDrafter.from_pretrained(golden / folder / "drafter").eval()
    for threshold, runs in facts["greedy_runs"].items():
        if drafter.confidence_head is None:
            drafter.set_policy("full")
        else:
            drafter.set_policy("threshold", threshold=float(threshold))
        for run in runs:
            output = target.generate(
                torch.tensor([run["prompt"]]),
                assistant_model=drafter,
                do_sample=False,
                max_new_tokens=facts["max_new_tokens"],
                eos_token_id=facts["stop_token_ids"],
            )
            assert output[0].tolist() == run["output_ids"]
            rounds = drafter.last_generation.rounds[:-2]
            assert [verified for _, _, verified, _ in rounds] == run["proposal_lengths"][: len(rounds)]
            assert [accepted for *_, accepted in rounds] == run["accepted_draft_lengths"][: len(rounds)]
            assert len(drafter.last_generation.rounds) >= len(run["proposal_lengths"]) - 1
