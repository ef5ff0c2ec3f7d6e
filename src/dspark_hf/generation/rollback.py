"""Taking back rejected tokens from the target's own cache: crop where a layer can, restore a snapshot where it cannot.

Recurrent states and static sliding windows forget what they overwrite, so their layers are copied before a verification and,
after a rejection, restored and fed the accepted tokens again. Knows nothing of models: the caller replays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DummyLayer, LinearAttentionCacheLayerMixin, StaticSlidingWindowLayer


class Rollback:
    """
    Args:
        cache (`Cache`): the target's cache, after the prompt.

    Raises:
        ValueError: a layer can neither be cropped nor copied (e.g. a quantised cache).
    """

    def __init__(self, cache: Cache):
        self.cache = cache
        self.copied: list[Any] = []
        self.cropped: list[Any] = []
        for layer in cache.layers:
            if isinstance(layer, (LinearAttentionCacheLayerMixin, StaticSlidingWindowLayer)):
                self.copied.append(layer)
            elif layer.is_croppable:
                self.cropped.append(layer)
            else:
                raise ValueError(
                    f"the target's cache has layers of type {type(layer).__name__}, which cannot take back rejected tokens; "
                    "generate with the default, a static or an offloaded cache, or without a drafter"
                )
        # sliding layers drop old tokens at once unless told that a rejection may bring them back
        self._recording = [
            (layer, layer.record_past) for layer in self.cropped if hasattr(layer, "activate_past_recording")
        ]
        for layer, _ in self._recording:
            layer.activate_past_recording()
        self._snapshots: list[dict[str, Any]] = []

    def before(self, width: int) -> None:
        """Called before a forward over `width` tokens, the first of which is certain."""
        self._snapshots = [_snapshot(layer) for layer in self.copied] if width > 1 else []

    def after(self, width: int, kept: int, replay: Callable[[int], object]) -> None:
        """
        Leaves the first `kept` of the `width` tokens in the cache.

        Args:
            replay: runs the target once more over the first `kept` tokens, where layers had to be restored.
        """
        if kept == width or not self.copied:
            self._crop(width - kept)
            return
        for layer, snapshot in zip(self.copied, self._snapshots, strict=True):
            _restore(layer, snapshot)
        self._crop(width)
        replay(kept)
        self._crop(0)

    def close(self) -> None:
        """Puts the recording of sliding layers back as it was."""
        for layer, recorded in self._recording:
            layer.record_past = recorded

    def _crop(self, tokens: int) -> None:
        # 0 is no no-op: a recording layer sheds what lies before its window
        for layer in self.cropped:
            layer.crop(-tokens)


def check_cache(cache: Any, target_name: str) -> None:
    """
    Raises:
        ValueError: the target keeps no cache that can be rolled back; known before any token.
    """
    if not isinstance(cache, Cache):
        raise ValueError(
            f"{target_name} runs without a transformers Cache here ({type(cache).__name__}), so drafted tokens cannot be taken "
            "back; leave use_cache on, or generate without a drafter"
        )
    for layer in cache.layers:
        copied = isinstance(layer, (LinearAttentionCacheLayerMixin, StaticSlidingWindowLayer, DummyLayer))
        if not copied and not layer.is_croppable:
            raise ValueError(
                f"a {type(cache).__name__} with {type(layer).__name__} cannot take back rejected tokens; generate with the "
                "default, a static or an offloaded cache, or without a drafter"
            )


def _snapshot(layer: Any) -> dict[str, Any]:
    return {name: _copy(value) for name, value in vars(layer).items() if isinstance(value, (torch.Tensor, dict, int))}


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return value


def _restore(layer: Any, snapshot: dict[str, Any]) -> None:
    for name, value in snapshot.items():
        vars(layer)[name] = _put_back(vars(layer)[name], value)


def _put_back(current: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(current, torch.Tensor) and current.shape == value.shape:
        # in place: compiled forwards hold the address of static states
        return current.copy_(value)
    if isinstance(value, dict):
        return {key: _put_back(current.get(key), item) for key, item in value.items()}
    return value
