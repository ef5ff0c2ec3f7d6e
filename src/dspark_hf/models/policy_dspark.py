"""Validation of a drafter's verification policy: names, knobs and their ranges. Decides nothing itself."""

from __future__ import annotations

import difflib
from typing import Any


# policy -> knobs it takes
POLICIES: dict[str, tuple[str, ...]] = {
    "full": (),
    "threshold": ("threshold",),
    "early_stop": ("tiers",),
    "lookahead": ("tiers",),
    "lagged_topk": ("tiers",),
    "optimal": ("tiers",),
    "auto": ("tiers", "bypass"),
}


def validated_policy(name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """
    Returns `{"name": name, **knobs}`; a knob of `None` is left out, for its default.

    Raises:
        ValueError: unknown policy or knob (names the nearest), or a value out of range.
    """
    if name not in POLICIES:
        raise ValueError(
            f"unknown policy {name!r}{_nearest(name, list(POLICIES))}; choose one of {', '.join(POLICIES)}"
        )
    for knob in knobs:
        if knob not in POLICIES[name]:
            known = ", ".join(POLICIES[name]) or "none"
            raise ValueError(
                f"policy {name!r} has no knob {knob!r}{_nearest(knob, list(POLICIES[name]))}; it takes: {known}"
            )
    knobs = {knob: value for knob, value in knobs.items() if value is not None}
    threshold = knobs.get("threshold", 0.0)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be a number in [0, 1] (0 verifies the whole block), got {threshold!r}")
    tiers = knobs.get("tiers")
    if tiers is not None and (not tiers or any(not isinstance(tier, int) or tier < 0 for tier in tiers)):
        raise ValueError(f"tiers must be a list of verified lengths >= 0, got {tiers!r}")
    if not isinstance(knobs.get("bypass", True), bool):
        raise ValueError(f"bypass must be true or false, got {knobs['bypass']!r}")
    return {"name": name, **knobs}


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
