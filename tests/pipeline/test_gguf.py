"""A GGUF file becomes an ordinary folder once; parts are joined; what is no GGUF is told."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspark_hf.dev.toy_corpus import library_samples
from dspark_hf.dev.toy_target import build_tokenizer
from dspark_hf.pipeline import gguf as opener
from dspark_hf.pipeline.gguf import folder_of_gguf, gguf_config


HIDDEN, HEADS, VOCABULARY = 32, 2, 300


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A random Llama of one layer."""
    import gguf

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    tokenizer = build_tokenizer(library_samples(limit=20), VOCABULARY)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["e r", "i n"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    random = np.random.default_rng(0)
    for name, shape in {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_v.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": (48, HIDDEN),
        "blk.0.ffn_up.weight": (48, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, 48),
    }.items():
        writer.add_tensor(name, random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_opens_without_the_file_and_is_made_once(file, tmp_path, monkeypatch):
    folder = folder_of_gguf(str(file), cache=tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert "quantization_config" not in model.config.to_dict()
    assert AutoTokenizer.from_pretrained(folder)("over in")["input_ids"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name]
    monkeypatch.setattr(opener, "_convert", lambda *_: pytest.fail("converted twice"))
    assert folder_of_gguf(str(file), cache=tmp_path) == folder


def test_the_configuration_is_read_without_converting(file, tmp_path):
    assert gguf_config(str(file), cache=tmp_path).hidden_size == HIDDEN
    assert not list(tmp_path.iterdir())


def test_parts_that_packages_carry_are_joined(file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    content, packages = file.read_bytes(), ("tiny_model", "tiny_model_part1", "tiny_model_part2")
    for package in packages:
        (tmp_path / package / "data").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
    half = len(content) // 2
    (tmp_path / "tiny_model_part1/data/tiny.gguf.part01").write_bytes(content[:half])
    (tmp_path / "tiny_model_part2/data/tiny.gguf.part02").write_bytes(content[half:])
    folder = folder_of_gguf("package:tiny_model", cache=tmp_path / "cache")
    whole = folder_of_gguf(str(file), cache=tmp_path / "cache")
    first, second = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (folder, whole))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not (folder / "joined.gguf").exists()
    for package in packages:
        sys.modules.pop(package, None)


def test_a_file_of_another_kind_is_told_and_leaves_nothing(tmp_path):
    (tmp_path / "fake.gguf").write_bytes(b"no model")
    with pytest.raises(ValueError, match="is no GGUF file"):
        folder_of_gguf(str(tmp_path / "fake.gguf"), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_package_without_a_file_is_told(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "empty_model").mkdir()
    (tmp_path / "empty_model" / "__init__.py").write_text("")
    with pytest.raises(FileNotFoundError, match=r"'empty_model' holds no \.gguf file"):
        folder_of_gguf("package:empty_model", cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "empty_model")
