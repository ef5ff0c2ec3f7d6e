"""The way in: `dspark_hf.generate`, and the hook that lets `target.generate(assistant_model=drafter)` arrive there.

Both hand the decode loop to transformers' own extension point, `custom_generate`, so prompt, configuration, processors and
caches are prepared by `generate` itself. This is the only file that touches names of transformers that are not public.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import transformers
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import GenerationMixin
from transformers.utils import logging

from dspark_hf.models import DSparkDrafter

from .decoding import decode, lock_of
from .padding import move_padding_left
from .request import GenerationRequest
from .thinking import warn_if_mode_differs


logger = logging.get_logger(__name__)

KNOWN_VERSIONS = ("5.23", "5.24")
EXPECTED_PARAMETERS = {
    "inputs",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "synced_gpus",
    "assistant_model",
    "streamer",
    "custom_generate",
}
# the argument was renamed in 5.24
CACHE_KEYWORD = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
MARK = "_dspark_hf_hook"


def is_drafter(model: Any) -> bool:
    """Whether a model is a DSpark drafter, ours or a copy that a repository shipped as remote code."""
    if isinstance(model, DSparkDrafter):
        return True
    return isinstance(model, PreTrainedModel) and model.config.model_type == "dspark"


def install() -> bool:
    """
    Makes `generate(assistant_model=...)` accept DSpark drafters; importing `dspark_hf` does this.

    Calling it again changes nothing. Calls without a DSpark drafter go on as if it had never been installed.

    Returns:
        `bool`: whether the hook is in place; `False` (with a warning) where `generate` does not look as expected.
    """
    current = GenerationMixin.generate
    if _is_hooked(current):
        return True
    missing = EXPECTED_PARAMETERS - set(inspect.signature(current).parameters)
    if missing:
        logger.warning(
            f"transformers {transformers.__version__} has a generate() without {', '.join(sorted(missing))}; dspark_hf knows "
            f"{' and '.join(KNOWN_VERSIONS)} and leaves it alone: generate(assistant_model=drafter) will not work"
        )
        return False
    GenerationMixin.generate = _hooked(current)
    # pipelines look an assistant's class up by the name in its configuration
    if not hasattr(transformers, DSparkDrafter.__name__):
        setattr(transformers, DSparkDrafter.__name__, DSparkDrafter)
    return True


def generate(target: Any, drafter: Any, inputs: Any = None, **kwargs: Any) -> Any:
    """
    `target.generate(inputs, **kwargs)` with a drafter, without the hook.

    Args:
        target (`PreTrainedModel`): any causal language model of transformers (a PEFT or compiled wrapper, too).
        drafter (`DSparkDrafter`): made for this target.
        inputs (`torch.Tensor`, *optional*): prompt ids `[B, L]`; or `input_ids=`, `inputs_embeds=`.
        kwargs: everything else that `generate` takes. `num_assistant_tokens` and `assistant_confidence_threshold` override
            those of `drafter.generation_config` for this call.

    Returns:
        what `target.generate` would return.

    Raises:
        ValueError: the pair does not fit, or an option cannot be combined with a drafter; before any token.
    """
    if not is_drafter(drafter):
        raise ValueError(
            f"expected a DSpark drafter, got {type(drafter).__name__}; load one with DSparkDrafter.from_pretrained"
        )
    return _generate(target.generate, target, drafter, {"inputs": inputs, **kwargs})


def _hooked(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate_with_drafter(self, *args, **kwargs):
        arguments = signature.bind(self, *args, **kwargs).arguments
        drafter = arguments.get("assistant_model")
        if not is_drafter(drafter) or arguments.get("custom_generate") is not None:
            return original(self, *args, **kwargs)
        named = {key: value for key, value in arguments.items() if key not in ("self", "kwargs", "assistant_model")}
        return _generate(functools.partial(original, self), self, drafter, {**named, **arguments.get("kwargs", {})})

    setattr(generate_with_drafter, MARK, True)
    return generate_with_drafter


def _is_hooked(function: Any) -> bool:
    """Whether our hook is anywhere in a chain of wrappers."""
    while function is not None:
        if getattr(function, MARK, False):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _generate(call: Callable[..., Any], target: Any, drafter: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.pop("assistant_tokenizer", None) is not None:
        raise ValueError("assistant_tokenizer is not needed: a DSpark drafter uses its target's tokens; leave it out")
    if kwargs.pop("synced_gpus", False):
        raise ValueError(
            "synced_gpus=True cannot be combined with a DSpark drafter: ranks make different numbers of rounds"
        )
    tokenizer = kwargs.pop("tokenizer", None)
    knobs = _knobs(drafter, kwargs)
    _move_stop_strings(target, kwargs, tokenizer)
    original_ids = move_padding_left(kwargs)
    own_cache = kwargs.get(CACHE_KEYWORD) is not None or kwargs.get("past_key_values") is not None
    streamer = kwargs.get("streamer")

    def drafted(
        model: PreTrainedModel,
        input_ids: Any,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Any:
        if own_cache and len(input_ids) > 1:
            raise ValueError(
                f"{CACHE_KEYWORD}=... works with one row at a time with a drafter, got {len(input_ids)} rows; leave it out"
            )
        warn_if_mode_differs(drafter, model, input_ids, tokenizer)
        request = GenerationRequest(
            model,
            drafter,
            input_ids,
            model_kwargs,
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer=streamer,
            attention_implementation=model.config.get_text_config()._attn_implementation,
            cache_keyword=CACHE_KEYWORD,
            **knobs,
        )
        plain = functools.partial(
            GenerationMixin._sample,
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            streamer=streamer,
            **model_kwargs,
        )
        return decode(request, plain)

    with lock_of(drafter):
        output = call(custom_generate=drafted, **kwargs)
    if original_ids is not None:
        sequences = output if not hasattr(output, "sequences") else output.sequences
        sequences[:, : original_ids.shape[1]] = original_ids
    return output


def _knobs(drafter: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """transformers' own knobs: of the call, else of the drafter's configuration; neither object is changed."""
    config = drafter.generation_config
    tokens = kwargs.pop("num_assistant_tokens", config.num_assistant_tokens)
    threshold = kwargs.pop("assistant_confidence_threshold", config.assistant_confidence_threshold)
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise ValueError(f"num_assistant_tokens must be an integer >= 1, got {tokens!r}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ValueError(f"assistant_confidence_threshold must be a number in [0, 1], got {threshold!r}")
    return {"num_assistant_tokens": tokens, "confidence_threshold": threshold}


def _move_stop_strings(target: Any, kwargs: dict[str, Any], tokenizer: Any) -> None:
    """Turns stop strings into a criterion here, because `generate` keeps the tokenizer from its extension point."""
    config = kwargs.get("generation_config")
    strings = kwargs.get("stop_strings")
    if strings is None and config is not None:
        strings = config.stop_strings
    if strings is None:
        strings = target.generation_config.stop_strings
    if strings is None:
        return
    if tokenizer is None:
        raise ValueError(f"stop_strings={strings!r} needs the target's tokenizer: pass tokenizer=... to generate")
    if config is not None and target.generation_config.stop_strings is None and "stop_strings" not in kwargs:
        kwargs["generation_config"] = copy.deepcopy(config)
        kwargs["generation_config"].stop_strings = None
    else:
        kwargs["stop_strings"] = None
    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or [])
    criteria.append(StopStringCriteria(stop_strings=strings, tokenizer=tokenizer))
    kwargs["stopping_criteria"] = criteria
