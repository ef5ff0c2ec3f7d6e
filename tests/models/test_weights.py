"""Weight files that are cut, flipped, misplaced or of another kind: an error that names them, and never a wrong load."""

import json
import random
import shutil

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dspark_hf.models import DSparkDrafter
from dspark_hf.models.weights_dspark import find_weights, read_header, seal, verify_checksums


@pytest.fixture
def native(golden, tmp_path):
    """A sealed native folder."""
    folder = tmp_path / "native"
    DSparkDrafter.from_pretrained(golden / "qwen3-rnn" / "drafter").save_pretrained(folder)
    return folder


def attempt(folder):
    try:
        return None, DSparkDrafter.from_pretrained(folder)
    except (ValueError, OSError) as error:
        return str(error), None


def open_with_target(folder, golden):
    target = AutoModelForCausalLM.from_pretrained(golden / "qwen3-vanilla" / "target")
    return DSparkDrafter.from_pretrained(folder, target=target)


def header_end(data):
    return 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize("sealed", [True, False])
def test_a_cut_file_is_an_error(golden, native, sealed):
    if not sealed:
        shutil.copy(golden / "qwen3-rnn" / "drafter" / "model.safetensors", native)
    path = native / "model.safetensors"
    data = path.read_bytes()
    generator = random.Random(1)
    for cut in (0, 1, 7, 8, 9, header_end(data), len(data) - 1, *generator.sample(range(10, len(data)), 43)):
        path.write_bytes(data[:cut])
        message, _ = attempt(native)
        assert message is not None
        assert "model.safetensors" in message


def test_a_flipped_bit_anywhere_in_a_sealed_file_is_an_error_or_harmless(native):
    path = native / "model.safetensors"
    data = path.read_bytes()
    before = DSparkDrafter.from_pretrained(native).state_dict()
    generator = random.Random(2)
    harmless = 0
    bits = [generator.randrange(8 * header_end(data)) for _ in range(60)]
    bits += [generator.randrange(8 * header_end(data), 8 * len(data)) for _ in range(80)]
    for bit in bits:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        message, drafter = attempt(native)
        if message is None:
            # letters of the metadata that nobody reads
            assert bit < 8 * header_end(data)
            assert all(torch.equal(tensor, before[name]) for name, tensor in drafter.state_dict().items())
            harmless += 1
        else:
            assert "tensor" in message or "model.safetensors" in message
    assert harmless <= 3


def test_a_flipped_bit_in_the_header_of_a_published_file_is_an_error(golden, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(golden / "qwen3-rnn" / "drafter" / name, tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    start = data.index(b'"confidence_head')
    generator = random.Random(3)
    for bit in generator.sample(range(8 * start, 8 * header_end(data)), 60):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        message, _ = attempt(tmp_path)
        assert message is not None
        assert str(tmp_path) in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_named_with_its_tensor(golden, tmp_path, value):
    shutil.copy(golden / "qwen3-rnn" / "drafter" / "config.json", tmp_path)
    tensors = load_file(golden / "qwen3-rnn" / "drafter" / "model.safetensors")
    tensors["layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message, _ = attempt(tmp_path)
    assert "layers.1.mlp.up_proj.weight holds NaN or infinity" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("norm.weight"), "tensors are missing: norm.weight"),
        (lambda tensors: tensors.update({"extra.weight": torch.ones(2)}), "no place for: extra.weight"),
        (lambda tensors: tensors.update({"fc.weight": torch.ones(3, 4)}), "fc.weight has shape [3, 4]"),
        (lambda tensors: tensors.update({"norm.weight": torch.ones(32, dtype=torch.int32)}), "must be a float tensor"),
        (lambda tensors: tensors.pop("lm_head.weight"), "ships no lm_head.weight"),
        (
            lambda tensors: tensors.update({"markov_w1.weight": tensors["markov_head.markov_w1.weight"].clone()}),
            "two spellings of one tensor",
        ),
    ],
)
def test_a_wrong_tensor_is_named(golden, tmp_path, change, message):
    shutil.copy(golden / "qwen3-rnn" / "drafter" / "config.json", tmp_path)
    tensors = load_file(golden / "qwen3-rnn" / "drafter" / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found, _ = attempt(tmp_path)
    assert message in found


def test_shards_load_and_a_missing_one_is_named(golden, tmp_path):
    whole = DSparkDrafter.from_pretrained(golden / "gemma4-rnn" / "drafter")
    whole.save_pretrained(tmp_path, max_shard_size="30KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    again = DSparkDrafter.from_pretrained(tmp_path)
    assert len(shards) > 3
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in whole.state_dict().items())

    shards[1].unlink()
    assert f"shard {shards[1].name}, which is missing" in attempt(tmp_path)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("weight_map"), "the index is damaged"),
        (lambda index: index.update(weight_map={}), "weight_map must name"),
        (lambda index: index.update(weight_map={"a": "../x.safetensors"}), "same folder"),
        (lambda index: index.update(weight_map={"a": 3}), "damaged"),
        (lambda index: index["weight_map"].pop("norm.weight"), "tensor norm.weight"),
        (lambda index: index["weight_map"].update(ghost="model-00001-of-00002.safetensors"), "ghost"),
    ],
)
def test_a_damaged_index_is_named(golden, tmp_path, change, message):
    DSparkDrafter.from_pretrained(golden / "qwen3-none" / "drafter").save_pretrained(tmp_path, max_shard_size="60KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    assert message in attempt(tmp_path)[0]


def test_pickled_weights_are_refused_with_the_reason(golden, tmp_path):
    shutil.copy(golden / "qwen3-rnn" / "drafter" / "config.json", tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    assert "pickled weights are refused because opening them can run code" in attempt(tmp_path)[0]
    with pytest.raises(ValueError, match="only safetensors are read"):
        DSparkDrafter.from_pretrained(tmp_path, use_safetensors=False)
    with pytest.raises(ValueError, match="gguf_file"):
        DSparkDrafter.from_pretrained(tmp_path, gguf_file="x.gguf")


def test_a_path_that_is_not_there_is_named():
    with pytest.raises(OSError, match="no such folder"):
        DSparkDrafter.from_pretrained("./nowhere/at/all")


def test_sealing_keeps_the_bytes_and_is_repeatable(golden, tmp_path):
    path = tmp_path / "model.safetensors"
    shutil.copy(golden / "speculators-dspark-rnn-pruned" / "drafter" / "model.safetensors", path)
    before = load_file(path)
    seal(path)
    once = path.read_bytes()
    seal(path)
    assert path.read_bytes() == once
    assert read_header(path)[1].keys() == {"format", "crc32"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in load_file(path).items())
    verify_checksums([path])


@pytest.mark.parametrize(
    ("offsets", "message"), [([1, 0, 0], "ascending"), ([93, 93, 94], "ascending"), ([-1, 0, 0], "ascending")]
)
def test_a_wrong_vocabulary_map_is_named(golden, tmp_path, offsets, message):
    folder = golden / "speculators-dspark-rnn-pruned" / "drafter"
    shutil.copy(folder / "config.json", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"][: len(offsets)] = torch.tensor(offsets)
    if offsets[0] == 93:
        tensors["d2t"][-3:] = torch.tensor(offsets)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"tensor d2t.*" + message):
        open_with_target(tmp_path, golden)


def test_a_mask_that_contradicts_the_map_is_named(golden, tmp_path):
    folder = golden / "speculators-dspark-rnn-pruned" / "drafter"
    shutil.copy(folder / "config.json", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["t2d"] = ~tensors["t2d"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="t2d contradicts d2t"):
        open_with_target(tmp_path, golden)


def test_weights_of_a_repository_are_found_alike(hub, golden):
    hub_api = HfApi()
    hub_api.create_repo("tester/drafter")
    hub_api.upload_folder(repo_id="tester/drafter", folder_path=golden / "qwen3-vanilla" / "drafter")
    hub_api.create_repo("tester/pickled")
    for name, content in (
        ("config.json", (golden / "qwen3-vanilla" / "drafter" / "config.json").read_bytes()),
        ("pytorch_model.bin", b"x"),
    ):
        hub_api.upload_file(repo_id="tester/pickled", path_in_repo=name, path_or_fileobj=content)

    assert len(find_weights("tester/drafter", {})) == 1
    assert DSparkDrafter.from_pretrained("tester/drafter").config.block_size == 5
    with pytest.raises(OSError, match="pickled weights are refused"):
        DSparkDrafter.from_pretrained("tester/pickled")
    with pytest.raises(OSError, match="tester/nothing"):
        DSparkDrafter.from_pretrained("tester/nothing")
