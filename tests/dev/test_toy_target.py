"""The toy target: its text, its tokenizer, and that building it is reproducible and done once."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspark_hf.dev import toy_target
from dspark_hf.dev.toy_corpus import LONGEST_ANSWER, library_samples
from dspark_hf.dev.toy_target import MASK, ToySettings, build_tokenizer, build_toy_target, toy_config


TINY = ToySettings(
    samples=40,
    vocab_size=320,
    hidden_size=32,
    num_hidden_layers=3,
    intermediate_size=48,
    head_dim=16,
    steps=3,
    row_tokens=32,
)
SOURCE = '''
def dumps(value, *, indent=None):
    """Write a value as text that can be read back."""
    return str(value)


class Reader:
    """Reads values one at a time from a stream."""

    def next(self):
        """Return the next value, or raise an error at the end."""

    def _hidden(self):
        """Nobody asks about this one, it is private."""
'''


@pytest.fixture(scope="module")
def samples():
    return library_samples(limit=TINY.samples)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_toy_target(TINY, cache=tmp_path_factory.mktemp("toy"))


def test_docstrings_and_short_sources_of_public_objects_become_samples(tmp_path):
    (tmp_path / "json.py").write_text(SOURCE)
    found = {sample.id: sample for sample in library_samples(tmp_path)}
    assert set(found) == {
        "explain:json.dumps",
        "code:json.dumps",
        "explain:json.Reader",
        "explain:json.Reader.next",
        "code:json.Reader.next",
    }
    assert found["explain:json.dumps"].answer == "Write a value as text that can be read back."
    assert found["code:json.Reader.next"].answer.startswith("def next(self):")


def test_a_larger_limit_only_adds_samples(samples):
    assert library_samples(limit=10) == samples[:10]
    assert all(len(sample.answer) > 20 for sample in samples)
    assert all(len(sample.answer) <= LONGEST_ANSWER for sample in samples if sample.kind == "explain")


def test_a_folder_without_the_library_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="No documented module"):
        library_samples(tmp_path)


def test_a_turn_ends_with_the_end_marker_and_the_mask_never_occurs(samples):
    tokenizer = build_tokenizer(samples, TINY.vocab_size)
    chat = [{"role": "user", "content": "Explain json.dumps."}, {"role": "assistant", "content": "It writes."}]
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    assert whole == f"{prompt}It writes.<|end|>\n"
    ids = tokenizer(whole)["input_ids"]
    assert ids.count(tokenizer.eos_token_id) == 2
    assert tokenizer.mask_token_id == tokenizer.convert_tokens_to_ids(MASK) == 3
    assert all(3 not in tokenizer(sample.answer)["input_ids"] for sample in samples)


def test_the_configuration_knows_the_tokenizers_markers(samples):
    tokenizer, config = build_tokenizer(samples, TINY.vocab_size), toy_config(TINY)
    assert (config.pad_token_id, config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert len(tokenizer) == config.vocab_size


def test_the_toy_opens_as_an_ordinary_folder_and_answers(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Explain os.walk."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    assert model.generate(**inputs, max_new_tokens=4, do_sample=False).shape[1] <= inputs["input_ids"].shape[1] + 4


def test_the_same_seed_gives_the_same_weights(folder, tmp_path):
    again = build_toy_target(TINY, cache=tmp_path)
    first, second = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (folder, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_built_toy_is_found_again_without_training(folder, monkeypatch):
    monkeypatch.setattr(toy_target, "library_samples", lambda **_: pytest.fail("trained twice"))
    assert build_toy_target(TINY, cache=folder.parent) == folder


def test_other_settings_get_another_folder():
    assert ToySettings(steps=1).folder_name() != ToySettings(steps=2).folder_name()


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(ValueError, match="'hiden_size'.*nearest known one is 'hidden_size'"):
        ToySettings.from_mapping({"hiden_size": 3})
