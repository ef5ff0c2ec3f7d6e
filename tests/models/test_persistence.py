"""What is saved comes back: alone, with a target, in another process, another dtype, through the Auto classes."""

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

import dspark_hf  # noqa: F401 - registers the Auto classes
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.models import DSparkConfig, DSparkDrafter


def drafted(drafter, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = len(drafter.config.target_layer_ids) * drafter.config.target_hidden_size
    context = torch.randn(2, 7, features, generator=generator)
    return drafter.draft_block(torch.tensor([3, 9]), context)


def close(found, expected):
    # weights are bit-equal; where a file puts them in memory decides how a product is summed
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)


def assert_same(first, second):
    one, two = first.state_dict(), second.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one)


# https://github.com/huggingface/transformers/issues/38870: shared tensors vanished on save
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_tensor_that_is_embedding_and_head_is_saved_once(tmp_path, alone, flag):
    target = tiny_target("qwen3", tie_word_embeddings=True)
    drafter = tiny_drafter(target, tie_word_embeddings=flag)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        drafter.lm_head.weight.copy_(target.get_input_embeddings().weight)
    drafter.tie_to(target)

    drafter.save_pretrained(tmp_path)
    again, info = DSparkDrafter.from_pretrained(tmp_path, target=None if alone else target, output_loading_info=True)

    held = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in held
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    assert not info["missing_keys"]
    assert again.lm_head.weight.data_ptr() == again.embed_tokens.weight.data_ptr()
    assert_same(drafter, again)


def held_bytes(*models):
    """Bytes of all tensors of the models, shared memory counted once."""
    storages = {}
    for model in models:
        for tensor in model.state_dict().values():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("tied", [True, False])
def test_tying_to_a_target_holds_equal_tensors_once(tied):
    target = tiny_target("qwen3", tie_word_embeddings=tied)
    drafter = tiny_drafter(target)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        drafter.lm_head.weight.copy_(target.get_output_embeddings().weight)
    before, matrix = held_bytes(target, drafter), 64 * 32 * 4
    expected = drafted(drafter)

    assert drafter.tie_to(target) == ["embed_tokens.weight", "lm_head.weight"]
    assert held_bytes(target, drafter) == before - 2 * matrix
    assert torch.equal(drafted(drafter).logits, expected.logits)


def test_tying_leaves_tensors_alone_that_differ():
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(target.get_output_embeddings().weight)
    assert drafter.tie_to(target) == ["lm_head.weight"]
    assert tiny_drafter(target).to(torch.bfloat16).tie_to(target) == []


def test_different_embedding_and_head_are_both_saved(tmp_path):
    drafter = tiny_drafter(tiny_target("qwen3"), tie_word_embeddings=True)
    drafter.lm_head.weight = torch.nn.Parameter(torch.randn_like(drafter.lm_head.weight))
    drafter.save_pretrained(tmp_path)
    again = DSparkDrafter.from_pretrained(tmp_path)
    assert again.config.tie_word_embeddings is False
    assert_same(drafter, again)


def without(folder, *names):
    """Takes tensors out of a saved folder, as a checkpoint that borrows them has it."""
    path = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if name not in names}
    save_file(kept, path, metadata={"format": "pt"})


# https://github.com/NVIDIA/TensorRT-Edge-LLM/pull/200: drafters without head, embedding or tokenizer were rejected
def test_a_checkpoint_without_embedding_and_head_needs_a_target_and_says_so(tmp_path):
    target = tiny_target("llama")
    drafter = tiny_drafter(target)
    drafter.save_pretrained(tmp_path)
    without(tmp_path, "embed_tokens.weight", "lm_head.weight")

    with pytest.raises(ValueError, match=r"ships no embed_tokens.weight and no lm_head.weight.*target=model"):
        DSparkDrafter.from_pretrained(tmp_path)
    borrowed = DSparkDrafter.from_pretrained(tmp_path, target=target)
    assert borrowed.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()
    assert borrowed.embed_tokens.weight.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    borrowed.save_pretrained(tmp_path / "own")
    assert_same(borrowed, DSparkDrafter.from_pretrained(tmp_path / "own"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 48}, "hidden size 32, this target has 48"),
        ({"vocab_size": 80}, "vocabulary 64, this target has 80"),
        ({"num_hidden_layers": 6}, "of 4 layers, this one has 6"),
    ],
)
def test_a_target_of_another_size_is_refused_with_both_sizes(tmp_path, change, message):
    tiny_drafter(tiny_target("llama")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        DSparkDrafter.from_pretrained(tmp_path, target=tiny_target("llama", **change))


def test_a_borrowed_head_of_a_pruned_vocabulary_is_cut(tmp_path):
    target = tiny_target("llama")
    drafter = tiny_drafter(target, draft_vocab_size=20, bigram=False)
    drafter.set_draft_vocabulary(torch.arange(3, 63, 3))
    drafter.save_pretrained(tmp_path)
    without(tmp_path, "lm_head.weight")
    borrowed = DSparkDrafter.from_pretrained(tmp_path, target=target)
    assert torch.equal(borrowed.lm_head.weight, target.lm_head.weight[3:63:3])


# https://github.com/NVIDIA-NeMo/Automodel/pull/3238: another mask token was accepted silently
@pytest.mark.parametrize(
    "change", [{"mask_token_id": 6}, {"block_size": 3}, {"target_layer_ids": [0, 1]}, {"sample_from_anchor": False}]
)
def test_another_layout_than_the_checkpoints_is_an_error_with_both_values(tmp_path, change):
    drafter = tiny_drafter(tiny_target("qwen3"), bigram=False)
    drafter.save_pretrained(tmp_path)
    ((name, value),) = change.items()
    given = DSparkConfig.from_pretrained(tmp_path, **change)
    expected = rf"{name} is .* in the checkpoint, but .*{str(value)[:3].strip('[')}"
    for opening in (lambda: DSparkDrafter.from_pretrained(tmp_path, **change),
                    lambda: DSparkDrafter.from_pretrained(tmp_path, config=given),
                    lambda: AutoModel.from_pretrained(tmp_path, **change)):  # fmt: skip
        with pytest.raises(ValueError, match=expected):
            opening()
    if name != "target_layer_ids":
        changed = DSparkDrafter.from_pretrained(tmp_path, config=given, allow_layout_change=True)
        assert vars(changed.config)[name] == value


def test_auto_classes_open_a_native_folder(tmp_path):
    drafter = tiny_drafter(tiny_target("gemma3"))
    drafter.save_pretrained(tmp_path)
    opened = AutoModel.from_pretrained(tmp_path, device_map="cpu", dtype=torch.bfloat16)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), DSparkConfig)
    assert isinstance(opened, DSparkDrafter)
    assert opened.dtype == torch.bfloat16
    assert AutoModel.from_pretrained(tmp_path).dtype == torch.float32


NOISE = """
import sys, torch
junk = [torch.full((1 << 20,), float("nan")) for _ in range(8)]
junk += [torch.full((size,), 1e30) for size in (1, 4, 8, 16, 32, 64, 128) for _ in range(400)]
del junk
from dspark_hf import DSparkDrafter
from safetensors.torch import load_file, save_file
from transformers import AutoModel
openings = {"auto": AutoModel.from_pretrained, "plain": DSparkDrafter.from_pretrained,
            "map": lambda folder: DSparkDrafter.from_pretrained(folder, device_map="cpu")}
for folder in sys.argv[1:]:
    given = load_file(folder + "/given")
    for name, opening in openings.items():
        drafter = opening(folder)
        held = {f"buffer.{key}": value for key, value in drafter.named_buffers()}
        held["logits"] = drafter.draft_block(given["anchor"], given["context"]).logits
        held["inv_freq"] = drafter.to(torch.bfloat16).rotary_emb.inv_freq
        save_file(held, f"{folder}/{name}")
"""


# https://github.com/huggingface/transformers/issues/48892: buffers held random memory after loading
def test_buffers_are_right_in_a_fresh_process_full_of_noise(golden, tmp_path):
    pruned = tiny_drafter(tiny_target("qwen3"), draft_vocab_size=20, bigram=False)
    pruned.set_draft_vocabulary(torch.arange(1, 61, 3))
    gemma = DSparkDrafter.from_pretrained(golden / "gemma4-rnn" / "drafter")
    with torch.no_grad():
        gemma.layers[1].layer_scalar.fill_(0.75)
    saved = {tmp_path / "pruned": pruned, tmp_path / "gemma": gemma}
    for folder, drafter in saved.items():
        drafter.save_pretrained(folder)
        save_file({"anchor": torch.tensor([5]), "context": torch.randn(1, 6, 96)}, folder / "given")
    subprocess.run([sys.executable, "-c", NOISE, *map(str, saved)], check=True, timeout=300)

    for folder, drafter in saved.items():
        given = load_file(folder / "given")
        expected = drafter.draft_block(given["anchor"], given["context"])
        for how in ("auto", "map", "plain"):
            found = load_file(folder / how)
            close(found["logits"], expected.logits)
            assert found["inv_freq"].dtype == torch.float32
            assert torch.equal(found["inv_freq"], drafter.rotary_emb.inv_freq)
            assert all(
                torch.equal(found[f"buffer.{key}"].float(), buffer.float()) for key, buffer in drafter.named_buffers()
            )


# https://github.com/sgl-project/sglang/pull/29938: the confidence head failed or lost precision when cast
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_a_cast_drafter_keeps_its_confidences(kind, dtype):
    drafter = tiny_drafter(tiny_target("qwen3"), markov_head_type=kind, bigram=False)
    with torch.no_grad():
        # the scale of trained heads; the tiny ones exaggerate
        for weight in drafter.parameters():
            weight.mul_(0.3 if weight.dim() > 1 else 1.0)
    context, ids = torch.randn(16, 7, 96), torch.randint(0, 60, (16, 5))
    before = drafter.teacher_forced(drafter(drafter.make_block(ids[:, 0]), context), ids)[1].sigmoid()
    cast = drafter.to(dtype)
    block = cast.draft_block(ids[:, 0], context)
    after = cast.teacher_forced(cast(cast.make_block(ids[:, 0]), context), ids)[1].sigmoid()

    assert block.confidence_logits.dtype == block.logits.dtype == torch.float32
    assert float((after - before).abs().max()) < 1e-2
    # two slots that differ by more than the tolerance keep their order
    difference = before.flatten()[:, None] - before.flatten()[None]
    moved = after.flatten()[:, None] - after.flatten()[None]
    assert bool((moved[difference > 2e-2] > 0).all())


def test_features_of_another_dtype_are_taken():
    drafter = tiny_drafter(tiny_target("qwen3"))
    assert drafted(drafter.to(torch.bfloat16)).logits.isfinite().all()


@st.composite
def configurations(draw):
    rank = draw(st.sampled_from([0, 1, 4]))
    confidence = draw(st.booleans())
    anchor_first = draw(st.booleans())
    sliding = draw(st.booleans())
    pruned = draw(st.sampled_from([None, 11]))
    layers = draw(st.integers(1, 3))
    body = draw(st.sampled_from(["qwen3", "gemma4"]))
    block = draw(st.integers(1 if anchor_first else 2, 7))
    kinds = draw(st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=layers, max_size=layers))
    return {
        "body": body,
        "vocab_size": 37,
        "draft_vocab_size": pruned,
        "hidden_size": draw(st.sampled_from([8, 12])),
        "target_hidden_size": draw(st.sampled_from([None, 10])),
        "intermediate_size": 8,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": draw(st.sampled_from([1, 2])),
        "head_dim": draw(st.sampled_from([4, 6])),
        "attention_k_eq_v": body == "gemma4" and draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "layer_types": kinds if sliding else None,
        "sliding_window": 9 if sliding else None,
        "sliding_window_from": draw(st.sampled_from(["row", "anchor"])),
        "causal_layers": draw(st.sampled_from(["none", "sliding"])),
        "final_logit_softcapping": draw(st.sampled_from([None, 5.0])),
        "embedding_scale": draw(st.sampled_from([1.0, 3.0])),
        "tie_word_embeddings": pruned is None and draw(st.booleans()),
        "block_size": block,
        "sample_from_anchor": anchor_first,
        "target_layer_ids": draw(st.sampled_from([[-1], [0, 2], [1, 3, 5]])),
        "num_target_layers": 7,
        "markov_rank": rank,
        "markov_head_type": draw(st.sampled_from(["vanilla", "gated", "rnn"])),
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": rank > 0 and draw(st.booleans()),
    }


@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fields=configurations())
def test_any_configuration_saves_loads_and_drafts_the_same(tmp_path_factory, fields):
    torch.manual_seed(0)
    drafter = DSparkDrafter(DSparkConfig(**fields)).eval()
    if fields["draft_vocab_size"]:
        drafter.set_draft_vocabulary(torch.arange(2, 35, 3))
    folder = tmp_path_factory.mktemp("drafter")
    drafter.save_pretrained(folder)
    again = DSparkDrafter.from_pretrained(folder)
    before, after = drafted(drafter), drafted(again)

    assert before.tokens.shape == (2, drafter.config.num_slots)
    assert before.logits.shape == (2, drafter.config.num_slots, 37)
    assert torch.equal(before.tokens, after.tokens)
    close(before.logits, after.logits)
    assert (before.confidence_logits is None) == (not fields["enable_confidence_head"])
    assert again.config.to_dict() | {"dtype": None, "architectures": None, "_name_or_path": None} == (
        drafter.config.to_dict() | {"dtype": None, "architectures": None, "_name_or_path": None}
    )
