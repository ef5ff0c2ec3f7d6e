"""The way in: the hook on `generate`, the same call without it, and what is refused before the first token."""

import importlib
import inspect
import logging
import threading

import peft
import pytest
import torch
import transformers
from transformers import GenerationConfig, pipeline
from transformers.generation import GenerationMixin
from transformers.utils import logging as transformers_logging

import dspark_hf
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.generation import dispatch


GREEDY = {"do_sample": False, "max_new_tokens": 16}


@pytest.fixture
def bare(monkeypatch):
    """transformers as it is without the hook."""
    original = GenerationMixin.generate
    while hasattr(original, "__wrapped__") and dispatch._is_hooked(original):
        original = original.__wrapped__
    monkeypatch.setattr(GenerationMixin, "generate", original)
    return original


@pytest.mark.parametrize("rows", [1, 3])
def test_the_call_without_the_hook_gives_the_same_text(rows, bare, pair, make_prompt):
    target, drafter = pair("qwen3")
    ids = make_prompt(6, rows)
    expected = target.generate(ids, **GREEDY)
    assert torch.equal(dspark_hf.generate(target, drafter, ids, **GREEDY), expected)
    assert torch.equal(dspark_hf.generate(target, drafter, input_ids=ids, **GREEDY), expected)
    assert drafter.last_generation.accepted > 0


def test_installing_twice_or_after_a_reload_wraps_once():
    hooked = GenerationMixin.generate
    assert dispatch.install()
    importlib.reload(dispatch)
    assert dispatch.install()
    assert GenerationMixin.generate is hooked


def test_a_patch_of_somebody_else_stays_in_place_on_either_side(bare, monkeypatch, pair, make_prompt):
    target, drafter = pair("qwen3")
    calls = []

    def wrapped(function):
        def generate(self, *args, **kwargs):
            calls.append(kwargs.get("assistant_model"))
            return function(self, *args, **kwargs)

        generate.__wrapped__ = function
        return generate

    expected = target.generate(make_prompt(6), **GREEDY)
    monkeypatch.setattr(GenerationMixin, "generate", wrapped(bare))
    assert dispatch.install()
    monkeypatch.setattr(GenerationMixin, "generate", wrapped(GenerationMixin.generate))
    assert dispatch.install()
    assert torch.equal(target.generate(make_prompt(6), assistant_model=drafter, **GREEDY), expected)
    assert calls == [drafter, None]


def test_an_unknown_generate_is_left_alone_with_the_known_versions_named(bare, monkeypatch, caplog):
    def generate(self, inputs, other=None):
        return inputs

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    transformers_logging.enable_propagation()
    with caplog.at_level(logging.WARNING):
        assert not dispatch.install()
    transformers_logging.disable_propagation()
    assert GenerationMixin.generate is generate
    assert "5.23 and 5.24" in caplog.text


def test_the_hook_keeps_the_signature_and_other_assistants(pair, make_prompt):
    target, _ = pair("qwen3")
    assert "assistant_model" in inspect.signature(GenerationMixin.generate).parameters
    ids = make_prompt(6)
    expected = target.generate(ids, **GREEDY)
    assert torch.equal(target.generate(ids, assistant_model=target, **GREEDY), expected)
    assert torch.equal(target.generate(ids, prompt_lookup_num_tokens=3, **GREEDY), expected)


def test_a_drafter_whose_class_came_with_its_repository_is_recognised(pair, make_prompt):
    target, drafter = pair("qwen3")
    copy_of_class = type("DSparkDrafter", (transformers.PreTrainedModel,), dict(vars(type(drafter))))
    stranger = tiny_drafter(target)
    stranger.__class__ = copy_of_class
    assert not isinstance(stranger, dspark_hf.DSparkDrafter)
    ids = make_prompt(6)
    assert torch.equal(target.generate(ids, assistant_model=stranger, **GREEDY), target.generate(ids, **GREEDY))
    assert stranger.last_generation.accepted > 0


def test_anything_but_a_drafter_is_refused(pair, make_prompt):
    target, _ = pair("qwen3")
    with pytest.raises(ValueError, match="expected a DSpark drafter, got Qwen3ForCausalLM"):
        dspark_hf.generate(target, target, make_prompt(3))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ({"vocab_size": 48}, "vocab_size"),
        ({"hidden_size": 64}, "hidden_size"),
        ({"num_hidden_layers": 6}, "num_hidden"),
    ],
)
def test_a_drafter_of_another_target_is_refused(overrides, name, pair, make_prompt):
    _, drafter = pair("qwen3")
    with pytest.raises(ValueError, match=f"made for a target with {name}"):
        tiny_target("qwen3", **overrides).generate(make_prompt(3, vocab=40), assistant_model=drafter, **GREEDY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 3}, "not with beam search"),
        ({"num_beams": 3, "do_sample": True}, "not with beam sample"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "not with contrastive search"),
        ({"dola_layers": "low"}, "not with dola generation"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight"),
        ({"speculation_type": "dflash"}, "speculation_type"),
        ({"prompt_lookup_num_tokens": 3}, "not with assisted generation"),
        ({"use_cache": False}, "use_cache"),
        ({"synced_gpus": True}, "synced_gpus"),
        ({"num_assistant_tokens": 0}, "num_assistant_tokens"),
        ({"assistant_confidence_threshold": 1.5}, "assistant_confidence_threshold"),
        ({"cache_implementation": "quantized"}, "cache|quanto"),
    ],
)
def test_options_without_a_meaning_are_refused_before_any_token(options, message, pair, make_prompt):
    target, drafter = pair("qwen3")
    asked = []
    with pytest.raises((ValueError, ImportError), match=message):
        target.generate(
            make_prompt(4),
            assistant_model=drafter,
            stopping_criteria=[lambda ids, scores: asked.append(1) or torch.tensor([False])],
            **{**GREEDY, **options},
        )
    assert not asked


def test_an_optimal_policy_is_refused_under_sampling(pair, make_prompt):
    target, drafter = pair("qwen3")
    drafter.set_policy("optimal")
    with pytest.raises(ValueError, match="optimal"):
        target.generate(make_prompt(4), assistant_model=drafter, do_sample=True, max_new_tokens=4)


def test_an_encoder_decoder_target_is_refused(pair):
    _, drafter = pair("qwen3")
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    target = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
    with pytest.raises(ValueError, match="decoder-only"):
        target.generate(torch.tensor([[3, 4]]), assistant_model=drafter, max_new_tokens=3)


def test_several_samples_of_one_prompt_are_rows_of_their_own(pair, make_prompt):
    target, drafter = pair("qwen3")
    output = target.generate(
        make_prompt(5), assistant_model=drafter, do_sample=True, num_return_sequences=6, max_new_tokens=12
    )
    assert output.shape == (6, 17)
    assert len({tuple(row.tolist()) for row in output}) > 1
    assert {row for row, *_ in drafter.last_generation.rounds} == set(range(6))


def test_knobs_of_the_drafter_are_honoured_per_call_and_leak_into_no_other(pair, make_prompt):
    target, _ = pair("qwen3")
    drafter = tiny_drafter(target)
    drafter.set_policy("full")
    ids = make_prompt(6)

    def longest(**options):
        target.generate(ids, assistant_model=drafter, **GREEDY, **options)
        return max(verified for _, _, verified, _ in drafter.last_generation.rounds)

    assert longest() == 5
    drafter.generation_config.num_assistant_tokens = 2
    assert longest() == 2
    assert longest(num_assistant_tokens=3) == 3
    assert longest() == 2
    drafter.generation_config.num_assistant_tokens = None
    drafter.generation_config.assistant_confidence_threshold = 1.0
    assert longest() == 0
    drafter.generation_config.assistant_confidence_threshold = None
    assert longest() == 5
    assert longest(assistant_confidence_threshold=1.0) == 0
    assert target.generation_config.num_assistant_tokens is None
    assert drafter.policy == {"name": "full"}


def test_a_generation_config_object_works_as_in_plain_decoding(pair, make_prompt):
    target, drafter = pair("qwen3")
    config = GenerationConfig(**GREEDY, repetition_penalty=1.3)
    expected = target.generate(make_prompt(6), config)
    assert torch.equal(target.generate(make_prompt(6), config, assistant_model=drafter), expected)


@pytest.mark.parametrize("by_path", [False, True])
def test_a_text_generation_pipeline_takes_a_drafter(by_path, pair, tokenizer, tmp_path):
    target, drafter = pair("qwen3")
    if by_path:
        drafter.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    options = {"max_new_tokens": 12, "do_sample": False}
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)
    drafted = pipeline(
        "text-generation", model=target, tokenizer=tokenizer, assistant_model=str(tmp_path) if by_path else drafter
    )
    assert drafted("hello", **options) == plain("hello", **options)
    assert drafted.assistant_model.last_generation.accepted > 0


# peft itself reads the attribute
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_target_with_adapters_works(make_prompt):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target)
    adapted = peft.get_peft_model(target, peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    adapted.eval()
    for rows in (1, 2):
        ids = make_prompt(6, rows)
        expected = adapted.generate(input_ids=ids, **GREEDY)
        assert torch.equal(adapted.generate(input_ids=ids, assistant_model=drafter, **GREEDY), expected)
        assert torch.equal(dspark_hf.generate(adapted, drafter, input_ids=ids, **GREEDY), expected)


def test_a_target_with_int8_weights_works(make_prompt):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target)

    class Int8Linear(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.scale = linear.weight.abs().amax(dim=1, keepdim=True) / 127
            self.weight = (linear.weight / self.scale).round().to(torch.int8)

        def forward(self, hidden):
            return torch.nn.functional.linear(hidden, self.weight.float() * self.scale)

    for layer in target.model.layers:
        layer.mlp.up_proj, layer.mlp.down_proj = Int8Linear(layer.mlp.up_proj), Int8Linear(layer.mlp.down_proj)
    for rows in (1, 2):
        ids = make_prompt(6, rows)
        assert torch.equal(target.generate(ids, assistant_model=drafter, **GREEDY), target.generate(ids, **GREEDY))


def test_a_compiled_target_works(make_prompt):
    plain, compiled = tiny_target("qwen3", num_hidden_layers=2), tiny_target("qwen3", num_hidden_layers=2)
    drafter = tiny_drafter(plain, target_layer_ids=[-1, 0])
    compiled.forward = torch.compile(compiled.forward, backend="eager", dynamic=True)
    ids = make_prompt(6)
    assert torch.equal(compiled.generate(ids, assistant_model=drafter, **GREEDY), plain.generate(ids, **GREEDY))
    assert drafter.last_generation.accepted > 0


def test_two_conversations_may_take_turns_on_one_drafter(pair, make_prompt):
    target, drafter = pair("qwen3")
    prompts = [make_prompt(5, seed=1), make_prompt(17, seed=2)]
    expected = [target.generate(ids, **GREEDY) for ids in prompts]
    for index in (0, 1, 0, 1, 1, 0):
        assert torch.equal(target.generate(prompts[index], assistant_model=drafter, **GREEDY), expected[index])


def test_threads_on_one_drafter_take_turns_and_never_mix(pair, make_prompt):
    target, drafter = pair("qwen3")
    prompts = [make_prompt(4 + 3 * index, seed=index) for index in range(4)]
    expected = [target.generate(ids, **GREEDY) for ids in prompts]
    outputs: dict[int, torch.Tensor] = {}

    def work(index):
        for _ in range(3):
            outputs[index] = target.generate(prompts[index], assistant_model=drafter, **GREEDY)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(outputs[index], expected[index]) for index in range(4))
