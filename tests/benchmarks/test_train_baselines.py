"""Alternatives trained on the rows of a finished run."""

import json

import pytest
from transformers import AutoModel

from benchmarks import train_baselines
from dspark_hf.baselines import Eagle3Drafter
from dspark_hf.dev.tiny import tiny_target
from dspark_hf.dev.tiny_tokenizer import tiny_tokenizer
from dspark_hf.pipeline.run import run_pipeline
from dspark_hf.training.recipe import build_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a tiny target."""
    root = tmp_path_factory.mktemp("baselines")
    tiny_target("qwen3").save_pretrained(root / "target")
    tiny_tokenizer().save_pretrained(root / "target")
    lines = [json.dumps({"turns": [f"question {chr(97 + index)}"]}) for index in range(16)]
    (root / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "target": {"name_or_path": str(root / "target"), "dtype": "float32"},
        "data": {
            "prompts": str(root / "prompts.jsonl"),
            "held_out_fraction": 0.3,
            "max_new_tokens": 10,
            "temperature": 0.0,
            "features": "cache",
        },
        "drafter": {
            "block_size": 3,
            "num_hidden_layers": 1,
            "target_layer_ids": [0, 1, 2],
            "markov_rank": 4,
            "draft_vocab_size": 32,
            "mask_token_id": 63,
        },
        "train": {"max_steps": 2, "max_tokens": 128, "anchors_per_row": 4, "eval_rows": 1, "max_row_tokens": 64},
        "calibrate": {"prompts": 2, "max_new_tokens": 6, "cost_seconds": 0.1, "cost_context_tokens": 16},
        "evaluate": {"prompts": 1, "max_new_tokens": 6, "temperatures": [0.0], "policies": ["full"]},
    }
    run_pipeline(build_recipe(recipe), root / "run")
    return root


def test_every_method_leaves_a_drafter_that_decodes_the_targets_text(run, capsys):
    methods = ["gated", "dflash", "mtp1", "eagle3"]
    output = run / "out"
    train_baselines.main(["--run", str(run / "run"), "--steps", "2", "--output", str(output), "--methods", *methods])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(entry["method"], entry["steps"]) for entry in told] == [(method, 2) for method in methods]
    drafters = {method: AutoModel.from_pretrained(output / method) for method in methods}
    assert isinstance(drafters["eagle3"], Eagle3Drafter)
    assert drafters["gated"].config.markov_head_type == "gated"
    assert (drafters["dflash"].markov_head, drafters["mtp1"].config.num_slots) == (None, 1)
    target = tiny_target("qwen3")
    inputs = tiny_tokenizer()("question a", return_tensors="pt")
    options = {"input_ids": inputs["input_ids"], "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = target.generate(**options).tolist()
    for method, drafter in drafters.items():
        assert target.generate(**options, assistant_model=drafter.float()).tolist() == plain, method
