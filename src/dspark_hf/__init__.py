"""DSpark speculative decoding for Hugging Face transformers.

Importing the package registers the drafter with the Auto classes and teaches `generate` to accept one:

    import dspark_hf
    drafter = dspark_hf.DSparkDrafter.from_pretrained("user/drafter")
    target.generate(**inputs, assistant_model=drafter)
"""

import importlib
from typing import Any

from transformers import AutoConfig, AutoModel

from .generation.dispatch import generate, install
from .models import DSparkConfig, DSparkDrafter


__version__ = "0.1.0"
__all__ = ["DSparkConfig", "DSparkDrafter", "generate", "register_published"]

# rooms that cost time to import are opened on first use
_ROOMS = ("calibration", "evaluation", "generation", "hub", "models", "ops", "pipeline", "scheduling", "training")

AutoConfig.register("dspark", DSparkConfig, exist_ok=True)
AutoModel.register(DSparkConfig, DSparkDrafter, exist_ok=True)
install()


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name == "register_published":
        return importlib.import_module(".hub.published", __name__).register_published
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
