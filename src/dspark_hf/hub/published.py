"""Teaches the Auto classes, on request, to recognise published drafters by what their `config.json` says.

DeepSpec's files call themselves `qwen3` or `gemma4_text`, so `AutoModel` builds a plain language model from them without a
word; those of speculators have no `model_type` at all. Knows nothing of weights.
"""

from __future__ import annotations

import functools

from transformers import AutoConfig, PreTrainedConfig

from dspark_hf.models import DSparkConfig
from dspark_hf.models.dialects_dspark import is_published_drafter


_registered = False


def register_published() -> None:
    """
    Lets `AutoConfig` and `AutoModel` open DeepSpec, speculators, SpecForge and z-lab drafters as [`DSparkDrafter`].

    Opt-in, because it changes what those classes return for such folders; everything else is left to them. Calling it again
    changes nothing.

    Example:

    ```python
    >>> import dspark_hf
    >>> dspark_hf.register_published()
    >>> AutoModel.from_pretrained("deepseek-ai/dspark_qwen3_4b_block7")  # a DSparkDrafter
    ```
    """
    global _registered
    if _registered:
        return
    original = AutoConfig.from_pretrained

    @functools.wraps(original)
    def from_pretrained(pretrained_model_name_or_path, **kwargs):
        # the raw file: transformers' own classes would drop the keys that tell
        try:
            held, _ = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **_about_the_hub(kwargs))
        except OSError:
            held = {}
        if not is_published_drafter(held):
            return original(pretrained_model_name_or_path, **kwargs)
        for name in ("trust_remote_code", "code_revision", "_from_auto"):
            kwargs.pop(name, None)
        return DSparkConfig.from_pretrained(pretrained_model_name_or_path, **kwargs)

    AutoConfig.from_pretrained = staticmethod(from_pretrained)  # type: ignore[method-assign]
    _registered = True


def _about_the_hub(kwargs: dict) -> dict:
    names = (
        "cache_dir",
        "force_download",
        "local_files_only",
        "proxies",
        "revision",
        "subfolder",
        "token",
        "gguf_file",
    )
    return {name: kwargs[name] for name in names if kwargs.get(name) is not None}
