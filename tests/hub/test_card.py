"""Cards: golden renders, metadata that the Hub accepts, and what a person wrote staying as it is."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData

from dspark_hf.evaluation.results import EvalResults, SuiteResult, update_calibration
from dspark_hf.hub import AdapterCard, DatasetCard, DrafterCard
from dspark_hf.hub.card_metadata import ALLOWED_KEYS, clean
from dspark_hf.hub.card_regions import is_untouched, merge, split_metadata


EXAMPLES = Path(__file__).parents[2] / "model_cards" / "examples"
ENVIRONMENT = {
    "hardware": {"cpu": "Example CPU 2.0 GHz", "cores": 2, "threads": 2},
    "versions": {"python": "3.11.0", "torch": "2.13.0", "transformers": "5.24.0"},
}
RECIPE = {
    "data": {"prompts": "openai/gsm8k", "temperature": 1.0, "top_p": 1.0, "thinking": False},
    "train": {
        "learning_rate": 6e-4,
        "ce_weight": 0.1,
        "l1_weight": 0.9,
        "confidence_weight": 1.0,
        "max_row_tokens": 4096,
    },
    "hub": {"license": "apache-2.0", "language": ["en"], "tags": []},
}


def edit_config(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def measured() -> EvalResults:
    results = EvalResults("dspark-tiny", "Qwen/Qwen3-0.6B", environment=ENVIRONMENT)
    results.settings = {"dtype": "float32", "policy": "auto", "command": "dspark-hf evaluate out --suite gsm8k"}
    for temperature, length in ((0.0, 3.1), (1.0, 2.6)):
        results.add(
            SuiteResult(
                suite="gsm8k",
                domain="math",
                temperature=temperature,
                prompts=40,
                requests=40,
                rounds=800,
                cut_rounds=40,
                accepted_length=length,
                accepted_length_interval=[length - 0.12, length + 0.14],
                accepted_length_by_request=length - 0.04,
                acceptance_by_slot=[0.81, 0.74, 0.7, 0.66, None],
                tokens_per_second=36.3,
                plain_tokens_per_second=22.7,
                speedup=1.6,
                speedup_interval=[1.52, 1.67],
                compared=40 if temperature == 0 else 0,
                identical=40 if temperature == 0 else 0,
            )
        )
    return results


@pytest.fixture
def full_folder(drafter_folder) -> Path:
    """A drafter's folder with everything the stages can leave in it."""
    calibration = {"temperature=0": {"temperatures": [1.2, 1.1, 1.0, 1.0, 1.0]}}
    edit_config(
        drafter_folder,
        target_name_or_path="Qwen/Qwen3-0.6B",
        target_revision="c1899de",
        target_thinking=False,
        confidence_calibration=calibration,
    )
    (drafter_folder / "training_recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    measured().save(drafter_folder)
    slots = [{"records": 5000, "ece_before": 0.081, "ece_after": 0.012, "auroc": 0.86}] * 2
    update_calibration(drafter_folder, "temperature=0", {"slots": slots})
    provenance = {
        "command": "dspark-hf train-and-push recipes/qwen3-0.6b/full.yaml",
        "created": "2026-11-30T12:00:00+00:00",
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "environment": ENVIRONMENT,
        "training": {"rows": 2000, "tokens": 1_200_000, "steps": 900, "seconds": 5400.0},
    }
    (drafter_folder / "provenance.json").write_text(json.dumps(provenance))
    (drafter_folder / "cost_curves").mkdir()
    curve = {"tokens": [1, 2, 4, 8], "seconds": [0.044, 0.046, 0.048, 0.0497], "draft_seconds": 0.0053}
    (drafter_folder / "cost_curves" / "cpu.json").write_text(json.dumps(curve))
    (drafter_folder / "plots").mkdir()
    for name in ("acceptance_by_slot", "reliability_temperature_0", "load_throughput"):
        (drafter_folder / "plots" / f"{name}.png").write_bytes(b"png")
    return drafter_folder


def check_golden(name: str, rendered: str, update: bool) -> None:
    path = EXAMPLES / name
    if update:
        path.write_text(rendered)
    assert rendered == path.read_text(), f"{path} differs; run pytest with --update-golden and read the difference"


def test_golden_full_drafter_card(full_folder, update_golden):
    card = DrafterCard.from_folder(
        full_folder, repo_id="acme/dspark-qwen3-0.6b-b5", has_custom_generate=True, engine_branch="deepspec"
    )
    check_golden("drafter_full.md", card.render(), update_golden)


def test_golden_bare_drafter_card(drafter_folder, update_golden):
    check_golden("drafter_bare.md", DrafterCard.from_folder(drafter_folder).render(), update_golden)


def test_golden_adapter_card(adapter_folder, update_golden):
    measured().save(adapter_folder)
    before = measured()
    for suite in before.suites:
        suite.accepted_length, suite.accepted_length_interval = 2.2, [2.1, 2.3]
    (adapter_folder / "before").mkdir()
    before.save(adapter_folder / "before")
    card = AdapterCard.from_folder(adapter_folder, repo_id="acme/dspark-tiny-lora-code", license="apache-2.0")
    check_golden("adapter.md", card.render(), update_golden)


def test_an_adapter_has_one_row_a_set_whatever_policies_ran(adapter_folder):
    results = measured()
    for suite in measured().suites:
        suite.policy, suite.accepted_length, suite.speedup = "auto", 1.02, 0.99
        results.add(suite)
    results.save(adapter_folder)
    rows = AdapterCard.from_folder(adapter_folder).acceptance_rows
    assert [(row[1], row[-1]) for row in rows] == [
        ("0", "1.60 (full), 0.99 (auto)"),
        ("1", "1.60 (full), 0.99 (auto)"),
    ]
    assert not any("1.02" in row[3] for row in rows)


def test_golden_dataset_card(rows_folder, update_golden):
    (rows_folder / "training_recipe.yaml").write_text(
        yaml.safe_dump(RECIPE | {"target": {"name_or_path": "Qwen/Qwen3-0.6B"}})
    )
    card = DatasetCard.from_folder(rows_folder, repo_id="acme/qwen3-0.6b-rows")
    check_golden("dataset.md", card.render(), update_golden)


def test_rows_say_themselves_who_wrote_them(tmp_path):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    sampling = json.dumps({"temperature": 1.0})
    rows = {"completion_ids": [[1], [2, 3]], "generator": ["/home/me/toy"] * 2, "sampling": [sampling] * 2}
    parquet.write_table(arrow.table(rows), tmp_path / "rows.parquet")
    text = DatasetCard.from_folder(tmp_path).render()
    assert "| Answers by | toy |" in text
    assert '| Sampling | {"temperature": 1.0} |' in text
    assert "/home/me" not in text


def sections(text: str) -> list[str]:
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def test_sections_come_in_a_fixed_order(full_folder):
    card = DrafterCard.from_folder(full_folder, repo_id="a/b", engine_branch="deepspec")
    assert sections(card.render()) == [
        "Use it",
        "What it is",
        "Acceptance",
        "Calibration",
        "Speed",
        "Training",
        "Limits",
        "Serving elsewhere",
        "Provenance",
        "License and citation",
    ]


def test_a_missing_part_removes_its_section_and_leaves_no_placeholder(drafter_folder):
    text = DrafterCard.from_folder(drafter_folder).render()
    assert sections(text) == ["Use it", "What it is", "Limits", "License and citation"]
    for word in ("None", "nan", "null", "More Information", "[insert", "Undefined"):
        assert word not in text


def test_unfinished_metadata_is_left_out_rather_than_null(drafter_folder):
    edit_config(drafter_folder, target_name_or_path=str(drafter_folder.parent / "my-target"))
    results = EvalResults("x", "y", suites=[SuiteResult("gsm8k", "math", 0.0, accepted_length=math.nan)])
    results.save(drafter_folder)
    text = DrafterCard.from_folder(drafter_folder, repo_id="acme/d").render()
    metadata, body = split_metadata(text)
    assert set(metadata) == {"library_name", "tags"}
    assert None not in metadata.values()
    assert str(drafter_folder.parent) not in text
    assert "my-target" in body


def test_metadata_goes_through_the_hub_s_own_card_class_unchanged(full_folder):
    text = DrafterCard.from_folder(full_folder, repo_id="acme/d").render()
    card = ModelCard(text)
    metadata, _ = split_metadata(text)
    assert card.data.base_model == "Qwen/Qwen3-0.6B"
    assert card.data.license == "apache-2.0"
    assert [result.metric_type for result in card.data.eval_results] == ["acceptance_length", "speedup"] * 2
    assert ModelCardData(**metadata).to_dict() == metadata


def test_two_temperatures_of_one_set_are_two_entries(full_folder):
    metadata, _ = split_metadata(DrafterCard.from_folder(full_folder, repo_id="acme/d").render())
    configs = [entry["dataset"]["config"] for entry in metadata["model-index"][0]["results"]]
    assert configs == ["temperature 0", "temperature 1"]


def test_two_policies_are_told_apart(drafter_folder):
    results = measured()
    results.add(SuiteResult("gsm8k", "math", 0.0, policy="auto", accepted_length=2.9, speedup=1.7))
    results.save(drafter_folder)
    text = DrafterCard.from_folder(drafter_folder).render()
    assert "| set | T | policy | tokens/s |" in text
    assert "| gsm8k | 0 | auto | - | - | 1.70 |" in text
    assert "config: temperature 0, policy auto" in text
    assert "2.90" not in text  # accepted lengths are those of whole blocks


def test_keys_outside_of_the_allow_list_are_refused():
    with pytest.raises(ValueError, match="must not hold 'licence'"):
        clean({"licence": "mit"})


def test_a_drafter_is_no_finetune():
    with pytest.raises(ValueError, match="must be 'adapter' or absent"):
        clean({"base_model": "a/b", "base_model_relation": "finetune"})


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.md"))])
def test_every_example_has_allowed_metadata_and_an_intact_seal(name):
    text = (EXAMPLES / name).read_text()
    metadata, _ = split_metadata(text)
    assert set(metadata) <= ALLOWED_KEYS
    assert is_untouched(text)


def test_a_drafter_without_embedding_and_head_says_who_lends_them(drafter_folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(drafter_folder / "model.safetensors")
    del weights["embed_tokens.weight"], weights["lm_head.weight"]
    save_file(weights, drafter_folder / "model.safetensors", metadata={"format": "pt"})
    text = DrafterCard.from_folder(drafter_folder).render()
    assert "ships no embedding and no head: load with `from_pretrained(..., target=target)`" in text
    assert "AutoTokenizer.from_pretrained(" in text


def test_a_head_that_is_the_embedding_is_not_called_absent(drafter_folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(drafter_folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, drafter_folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(drafter_folder, tie_word_embeddings=True)
    assert "ships no" not in DrafterCard.from_folder(drafter_folder).render()


def test_a_target_without_a_name_elsewhere_is_told_in_words(drafter_folder):
    EvalResults(target="the toy target of dspark-hf").save(drafter_folder)
    text = DrafterCard.from_folder(drafter_folder).render()
    assert "drafter for the toy target of dspark-hf: it proposes" in text
    assert '`"target"` below stands for its folder' in text
    assert "base_model" not in text


def test_engines_that_cannot_read_the_head_are_not_named(full_folder):
    edit_config(full_folder, markov_head_type="gated")
    card = DrafterCard.from_folder(full_folder, repo_id="a/b", engine_branch="deepspec")
    assert "Serving elsewhere" not in sections(card.render())


# --- renewing a card


def test_an_untouched_card_is_replaced_as_a_whole(full_folder, drafter_folder):
    old = DrafterCard.from_folder(full_folder, repo_id="a/b", license="mit").render()
    new = DrafterCard.from_folder(full_folder, repo_id="a/b", license="apache-2.0").render()
    assert merge(old, new) == new


def test_an_edited_card_keeps_the_person_s_words_and_renews_the_regions(full_folder):
    old = DrafterCard.from_folder(full_folder, repo_id="a/b").render()
    edited = old.replace("## Acceptance", "## Acceptance", 1).replace(
        "<!-- dspark-hf:begin acceptance -->", "My own words.\n\n<!-- dspark-hf:begin acceptance -->"
    )
    results = measured()
    results.suites[0].accepted_length = 9.87
    results.save(full_folder)
    merged = merge(edited, DrafterCard.from_folder(full_folder, repo_id="a/b").render())
    assert "My own words.\n\n<!-- dspark-hf:begin acceptance -->" in merged
    assert "9.87" in merged
    assert "3.10" not in merged


def test_a_second_merge_changes_nothing(full_folder):
    fresh = DrafterCard.from_folder(full_folder, repo_id="a/b").render()
    once = merge(fresh + "\nMine.\n", fresh)
    assert merge(once, fresh) == once


def test_a_region_that_a_person_took_out_stays_out(full_folder):
    fresh = DrafterCard.from_folder(full_folder, repo_id="a/b").render()
    start, end = fresh.index("<!-- dspark-hf:begin limits"), fresh.index("<!-- dspark-hf:end limits -->")
    edited = fresh[:start] + fresh[end + len("<!-- dspark-hf:end limits -->") :]
    assert "## Limits" not in merge(edited, fresh)


def test_a_region_that_is_new_joins_an_edited_card(drafter_folder):
    old = DrafterCard.from_folder(drafter_folder, repo_id="a/b").render() + "\nMine.\n"
    measured().save(drafter_folder)
    merged = merge(old, DrafterCard.from_folder(drafter_folder, repo_id="a/b").render())
    assert "## Acceptance" in merged
    assert "Mine." in merged


def test_a_card_of_somebody_s_own_keeps_its_text_and_gains_metadata(full_folder):
    own = "---\nlicense: mit\ntags:\n- mine\n---\n\n# By hand\n\nWords.\n"
    metadata, body = split_metadata(merge(own, DrafterCard.from_folder(full_folder, repo_id="a/b").render()))
    assert body.strip() == "# By hand\n\nWords."
    assert metadata["license"] == "mit"
    assert metadata["tags"][0] == "mine"
    assert metadata["base_model"] == "Qwen/Qwen3-0.6B"


def test_a_front_matter_that_is_no_yaml_is_named():
    with pytest.raises(ValueError, match="front matter is not valid YAML"):
        merge("---\na: [\n---\nx", "---\nlicense: mit\n---\ny")


def test_overwrite_takes_the_fresh_card():
    assert merge("# By hand", "fresh", overwrite=True) == "fresh"


# --- the file behind it


def test_results_survive_saving_and_loading(tmp_path):
    measured().save(tmp_path)
    assert EvalResults.load(tmp_path) == measured()


def test_a_result_of_the_same_set_and_temperature_replaces_the_older_one():
    results = measured()
    results.add(SuiteResult("gsm8k", "math", 0.0, accepted_length=4.0))
    assert [suite.accepted_length for suite in results.suites] == [2.6, 4.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not valid JSON"),
        ("[]", "format_version None"),
        ('{"format_version": 99}', "format_version 99"),
        ('{"format_version": 1, "surprise": 1}', "unknown key 'surprise'"),
    ],
)
def test_a_damaged_results_file_is_named(tmp_path, text, expected):
    (tmp_path / "eval_results.json").write_text(text)
    with pytest.raises(ValueError, match=expected):
        EvalResults.load(tmp_path)
