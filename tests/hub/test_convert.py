"""Drafters in other formats: the same bytes under the right names, and back again without a loss."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dspark_hf.cli import cli
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.hub.convert import SOURCE, convert_folder
from dspark_hf.hub.formats import FormatError
from dspark_hf.models import DSparkDrafter


DEEPSPEC = [f"{family}-{head}" for family in ("qwen3", "gemma4") for head in ("none", "vanilla", "gated", "rnn")]
SPECULATORS = ["speculators-dflash", "speculators-dspark-vanilla", "speculators-dspark-rnn-pruned"]
# what no drafter carries: a training knob, versions of the writer, and sizes of layers it does not have
UNKNOWABLE = {"num_anchors", "transformers_version", "speculators_version"}
GEMMA4_TARGETS_OWN = {"head_dim", "sliding_window"}


@pytest.fixture(scope="module")
def targets(golden):
    return {
        family: AutoModelForCausalLM.from_pretrained(golden / f"{family}-vanilla" / "target")
        for family in ("qwen3", "gemma4")
    }


def assert_same_bytes(first, second):
    one, two = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype
        assert torch.equal(tensor.contiguous().view(torch.uint8), two[name].contiguous().view(torch.uint8))


def differing(first, second):
    one, two = (json.loads((folder / "config.json").read_text()) for folder in (first, second))
    assert one.keys() == two.keys()
    return {key for key in one if one[key] != two[key]}


@pytest.mark.parametrize("name", DEEPSPEC)
def test_deepspec_to_native_and_back_is_the_same_folder(golden, tmp_path, name):
    source = golden / name / "drafter"
    convert_folder(source, tmp_path / "native", to="native")
    convert_folder(tmp_path / "native", tmp_path / "back", to="deepspec")
    assert_same_bytes(source, tmp_path / "back")
    assert differing(source, tmp_path / "back") == set()


@pytest.mark.parametrize("name", SPECULATORS)
def test_speculators_to_native_and_back_is_the_same_folder(golden, tmp_path, name):
    source = golden / name / "drafter"
    told = convert_folder(source, tmp_path / "native", to="native")
    convert_folder(tmp_path / "native", tmp_path / "back", to="speculators")
    assert_same_bytes(source, tmp_path / "back")
    assert differing(source, tmp_path / "back") == set()
    assert "stay with the target" in told.notes[0]


@pytest.mark.parametrize("name", [name for name in DEEPSPEC if name.startswith("qwen3")])
def test_deepspec_to_speculators_and_back_is_the_same_folder(golden, tmp_path, targets, name):
    source = golden / name / "drafter"
    target = AutoModelForCausalLM.from_pretrained(golden / name / "target")
    convert_folder(source, tmp_path / "spec", to="speculators", target=target)
    convert_folder(tmp_path / "spec", tmp_path / "back", to="deepspec", target=target)
    assert_same_bytes(source, tmp_path / "back")
    assert differing(source, tmp_path / "back") == set()


@pytest.mark.parametrize("name", DEEPSPEC)
def test_what_is_written_for_deepspec_has_its_fields(golden, tmp_path, name):
    """From a drafter that never was one: every key and value, field by field."""
    drafter = DSparkDrafter.from_pretrained(golden / name / "drafter")
    drafter.config.source_config = None
    drafter.save_pretrained(tmp_path / "native")
    convert_folder(tmp_path / "native", tmp_path / "written", to="deepspec")
    assert_same_bytes(golden / name / "drafter", tmp_path / "written")
    allowed = UNKNOWABLE | (GEMMA4_TARGETS_OWN if name.startswith("gemma4") else set())
    assert differing(golden / name / "drafter", tmp_path / "written") <= allowed


@pytest.mark.parametrize("name", SPECULATORS)
def test_what_is_written_for_speculators_has_its_fields(golden, tmp_path, targets, name):
    drafter = DSparkDrafter.from_pretrained(golden / name / "drafter", target=targets["qwen3"])
    drafter.config.source_config = None
    drafter.save_pretrained(tmp_path / "native")
    convert_folder(tmp_path / "native", tmp_path / "written", to="speculators", target=targets["qwen3"])
    assert_same_bytes(golden / name / "drafter", tmp_path / "written")
    assert differing(golden / name / "drafter", tmp_path / "written") <= UNKNOWABLE


def test_a_changed_field_is_changed_and_nothing_else(golden, tmp_path):
    source = golden / "qwen3-rnn" / "drafter"
    drafter = DSparkDrafter.from_pretrained(source)
    drafter.config.rms_norm_eps = 1e-5
    drafter.config.eos_token_id = [3, 95]
    drafter.save_pretrained(tmp_path / "native")
    convert_folder(tmp_path / "native", tmp_path / "back", to="deepspec")
    assert differing(source, tmp_path / "back") == {"rms_norm_eps", "eos_token_id"}


def test_calibration_survives_a_format_that_has_no_words_for_it(golden, tmp_path):
    drafter = DSparkDrafter.from_pretrained(golden / "qwen3-vanilla" / "drafter")
    drafter.config.confidence_calibration = {"greedy": {"temperatures": [1.0, 1.1, 1.2, 1.3, 1.4]}}
    drafter.save_pretrained(tmp_path / "native")
    convert_folder(tmp_path / "native", tmp_path / "engine", to="deepspec")
    convert_folder(tmp_path / "engine", tmp_path / "back", to="native")
    again = DSparkDrafter.from_pretrained(tmp_path / "back")
    assert again.config.confidence_calibration == drafter.config.confidence_calibration

    # an edited file speaks for itself
    path = tmp_path / "engine" / "config.json"
    path.write_text(path.read_text().replace('"num_anchors": 6', '"num_anchors": 7'))
    convert_folder(tmp_path / "engine", tmp_path / "edited", to="native")
    assert DSparkDrafter.from_pretrained(tmp_path / "edited").config.confidence_calibration is None


def test_a_shared_embedding_is_written_twice_where_both_names_are_expected(tmp_path):
    target = tiny_target("qwen3", tie_word_embeddings=True)
    drafter = tiny_drafter(target)
    with torch.no_grad():
        for module in (drafter.embed_tokens, drafter.lm_head):
            module.weight.copy_(target.get_input_embeddings().weight)
    drafter.save_pretrained(tmp_path / "native")
    convert_folder(tmp_path / "native", tmp_path / "engine", to="deepspec")
    convert_folder(tmp_path / "engine", tmp_path / "back", to="native")

    written = load_file(tmp_path / "engine" / "model.safetensors")
    assert torch.equal(written["lm_head.weight"], written["embed_tokens.weight"])
    assert "lm_head.weight" not in load_file(tmp_path / "back" / "model.safetensors")
    assert_same_bytes(tmp_path / "native", tmp_path / "back")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_copied_byte_for_byte(golden, tmp_path, dtype):
    DSparkDrafter.from_pretrained(golden / "qwen3-gated" / "drafter").to(dtype).save_pretrained(tmp_path / "native")
    convert_folder(tmp_path / "native", tmp_path / "engine", to="deepspec")
    assert_same_bytes(tmp_path / "native", tmp_path / "engine")
    assert json.loads((tmp_path / "engine" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_shards_become_one_file(golden, tmp_path):
    drafter = DSparkDrafter.from_pretrained(golden / "qwen3-rnn" / "drafter")
    drafter.save_pretrained(tmp_path / "native", max_shard_size="40KB")
    convert_folder(tmp_path / "native", tmp_path / "engine", to="deepspec")
    assert_same_bytes(golden / "qwen3-rnn" / "drafter", tmp_path / "engine")


@pytest.mark.parametrize(
    ("fields", "to", "message"),
    [
        ({"sample_from_anchor": False}, "deepspec", "sample_from_anchor=False"),
        ({"embedding_scale": 5.0}, "deepspec", "embedding_scale=5.0"),
        ({"final_logit_softcapping": 30.0}, "deepspec", "final_logit_softcapping"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}, "deepspec", "layer_types"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}, "speculators", "sliding_window_from"),
        ({"num_target_layers": None}, "deepspec", "num_target_layers is unknown"),
        ({"embedding_scale": 5.0}, "speculators", "embedding_scale"),
        ({"body": "gemma4"}, "speculators", "body='gemma4'"),
    ],
)
def test_a_format_without_words_for_a_field_says_so_and_writes_nothing(tmp_path, fields, to, message):
    tiny_drafter(tiny_target("qwen3"), bigram=False, **fields).save_pretrained(tmp_path / "native")
    with pytest.raises(FormatError, match=message):
        convert_folder(tmp_path / "native", tmp_path / "out", to=to)
    assert not list((tmp_path / "out").iterdir())


def test_deepspec_needs_a_target_for_what_the_source_left_to_it(golden, tmp_path, targets):
    source = golden / "speculators-dspark-vanilla" / "drafter"
    with pytest.raises(ValueError, match=r"num_target_layers|embed_tokens.weight and lm_head.weight"):
        convert_folder(source, tmp_path / "out", to="deepspec")
    convert_folder(source, tmp_path / "engine", to="deepspec", target=targets["qwen3"])
    written = load_file(tmp_path / "engine" / "model.safetensors")
    assert torch.equal(written["lm_head.weight"], targets["qwen3"].lm_head.weight)
    held = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert (held["num_target_layers"], held["target_layer_ids"]) == (6, [0, 2, 4])


def test_speculators_refuses_an_embedding_that_is_not_the_targets(golden, tmp_path, targets):
    drafter = DSparkDrafter.from_pretrained(golden / "qwen3-vanilla" / "drafter")
    with torch.no_grad():
        drafter.embed_tokens.weight[3, 3] += 1
    drafter.save_pretrained(tmp_path / "native")
    with pytest.raises(FormatError, match="takes embed_tokens.weight from the target"):
        convert_folder(tmp_path / "native", tmp_path / "out", to="speculators", target=targets["qwen3"])
    told = convert_folder(tmp_path / "native", tmp_path / "out", to="speculators")
    assert "not compared" in told.notes[0]


def test_a_destination_in_use_is_kept_unless_overwritten(golden, tmp_path):
    source = golden / "qwen3-none" / "drafter"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_bytes(b"old")
    with pytest.raises(ValueError, match="is not empty"):
        convert_folder(source, tmp_path / "out", to="native")
    convert_folder(source, tmp_path / "out", to="native", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_bad_input_is_one_clear_error(golden, tmp_path):
    source = golden / "qwen3-none" / "drafter"
    with pytest.raises(ValueError, match="format must be one of native, deepspec, speculators"):
        convert_folder(source, tmp_path / "out", to="gguf")
    with pytest.raises(OSError, match="no such folder"):
        convert_folder(tmp_path / "nowhere", tmp_path / "out", to="native")
    shutil.copytree(source, tmp_path / "same", copy_function=shutil.copyfile)
    with pytest.raises(ValueError, match="same folder"):
        convert_folder(tmp_path / "same", tmp_path / "same", to="native")


def test_the_command_converts_and_reports(golden, tmp_path):
    source = golden / "qwen3-rnn" / "drafter"
    done = CliRunner().invoke(cli, ["convert", str(source), str(tmp_path / "native"), "--to", "native"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(
        cli, ["convert", str(tmp_path / "native"), str(tmp_path / "back"), "--to", "deepspec", "--json"]
    )
    told = json.loads(done.output[done.output.index("{") :])
    assert (told["source_format"], told["format"], told["num_tensors"]) == ("native", "deepspec", 33)
    assert "vanilla Markov head only" in told["notes"][0]
    assert_same_bytes(source, tmp_path / "back")
    assert (tmp_path / "back" / SOURCE).is_file()


def test_the_command_reads_a_repository(hub, golden, tmp_path):
    from huggingface_hub import HfApi

    HfApi().create_repo("tester/published")
    HfApi().upload_folder(repo_id="tester/published", folder_path=golden / "qwen3-rnn" / "drafter")
    done = CliRunner().invoke(cli, ["convert", "tester/published", str(tmp_path / "native"), "--to", "native"])
    assert done.exit_code == 0, done.output
    assert DSparkDrafter.from_pretrained(tmp_path / "native").config.markov_head_type == "rnn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{golden}/qwen3-none/target", "{tmp}/x", "--to", "native"], "not a drafter this package knows"),
        (["{golden}/qwen3-none/drafter", "{tmp}/x", "--to", "native", "--target", "{tmp}/y"], "y"),
        (["{golden}/gemma4-none/drafter", "{tmp}/x", "--to", "speculators"], "body='gemma4'"),
    ],
)
def test_the_command_says_bad_input_in_one_line_and_exits_with_2(golden, tmp_path, arguments, message):
    done = CliRunner().invoke(cli, ["convert", *(word.format(golden=golden, tmp=tmp_path) for word in arguments)])
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
