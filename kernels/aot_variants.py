"""The kernel variants that ship, with the argument types of a Qwen3-4B sized drafter (V = 151936, r = 256, K = 7).

Knows nothing of compiling; `aot.py` reads the list.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from dspark_linear_loss.rows_triton import loss_row_kernel
from dspark_markov.draft_kernels import finish_kernel, tile_kernel
from dspark_schedule.prefix_kernels import admit_kernel, rank_kernel
from dspark_verify.ragged_kernels import accept_kernel, emit_kernel, residual_kernel, row_stats_kernel


DTYPES = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32"}
STRIDES = ("base_stride", "logits_stride", "draft_stride", "target_stride", "q_row_stride", "q_slot_stride", "U", "V")


@dataclass(frozen=True)
class Variant:
    """One compile: kernel, argument types by name, constants by name, and whether a plain call launches it."""

    name: str
    kernel: Any
    types: dict
    constants: dict
    num_warps: int = 4
    default: bool = False
    divisible: tuple = field(default=STRIDES)


def _pointers(dtype: str, names: str) -> dict:
    return dict.fromkeys(names.split(), dtype)


def markov_variants():
    integers = _pointers("i32", "base_stride projection_stride embedding_column slot R K U NB")
    fixed = {
        **_pointers("*fp32", "temperature peaks sums log_q normalizers hidden_confidence confidence_weight"),
        **_pointers("*fp32", "confidence_temperatures confidence_biases confidence_logits survival"),
        **_pointers("*i32", "bests"),
        **_pointers("*i64", "anchor draft_to_target seeds positions tokens"),
        **_pointers("*fp64", "uniforms"),
        **integers,
    }
    weights = "base w1 w2 latent latents states projected projection"
    shapes = [(dtype, block_r) for dtype in DTYPES for block_r in (16, 64) if (dtype, block_r) != ("fp32", 64)]
    for (dtype, block_r), store in itertools.product(shapes, (True, False)):
        yield Variant(
            f"markov.tile {dtype} rows={block_r} store={store}",
            tile_kernel,
            {**fixed, **_pointers(DTYPES[dtype], weights)},
            {
                "RANK": 256,
                "BLOCK_R": block_r,
                "BLOCK": 128,
                "BLOCK_K": 64,
                "HAS_BIAS": True,
                "STORE": store,
                "DOT_FP32": dtype == "fp32",
            },
            default=dtype == "bf16" and store,
        )
    yield Variant(
        "markov.tile without head",
        tile_kernel,
        {**fixed, **_pointers("*bf16", weights)},
        {
            "w2": None,
            "latent": None,
            "RANK": 1,
            "BLOCK_R": 64,
            "BLOCK": 128,
            "BLOCK_K": 16,
            "HAS_BIAS": False,
            "STORE": False,
            "DOT_FP32": False,
        },
    )
    shape = {"RANK": 256, "RANK_P2": 256, "BLOCK": 128, "BLOCKS": 2048, "BLOCK_O": 16, "HAS_BIAS": True}
    for head, first, sample, store in (
        ("vanilla", True, False, True),
        ("vanilla", False, False, True),
        ("vanilla", False, True, True),
        ("vanilla", False, True, False),
        ("gated", False, True, True),
        ("rnn", False, True, True),
        ("rnn", True, False, True),
    ):
        absent = {"draft_to_target": None, "uniforms": None}
        if head == "vanilla":
            absent.update(projected=None, projection=None)
        if head != "rnn":
            absent.update(states=None)
        yield Variant(
            f"markov.finish {head} first={first} sample={sample} store={store}",
            finish_kernel,
            {**fixed, **_pointers("*bf16", weights)},
            {
                **absent,
                **shape,
                "HEAD": head,
                "FIRST": first,
                "LAST": False,
                "STORE": store,
                "SAMPLE": sample,
                "KEYED": True,
                "CONFIDENCE": True,
            },
            default=store,
        )
    yield Variant(
        "markov.finish vanilla pruned uniforms last",
        finish_kernel,
        {**fixed, **_pointers("*fp32", weights)},
        {
            **_pointers(None, "projected projection states seeds positions hidden_confidence confidence_weight"),
            **_pointers(None, "confidence_temperatures confidence_biases confidence_logits survival"),
            **shape,
            "HEAD": "vanilla",
            "FIRST": False,
            "LAST": True,
            "STORE": True,
            "SAMPLE": True,
            "KEYED": False,
            "CONFIDENCE": False,
        },
    )


def schedule_variants():
    types = {
        **_pointers("*fp32", "survival ranked acceptance"),
        **_pointers("*fp64", "seconds draft_seconds throughput"),
        **_pointers("*i32", "limits order ranks capacity lengths cu_seqlens marker admitted"),
        **_pointers("i32", "R K N base acceptance_stride"),
    }
    for limits in (False, True):
        constants = {"BLOCK": 16, "BLOCK_OTHER": 128, **({} if limits else {"limits": None})}
        yield Variant(f"schedule.rank limits={limits}", rank_kernel, types, constants, default=not limits)
    for policy, slots in itertools.product(("early_stop", "lookahead", "top_k"), (8, 32)):
        absent = {"capacity": None} if policy != "top_k" else {}
        absent.update({} if policy == "lookahead" else {"acceptance": None})
        constants = {**absent, "CHUNK": 1024, "ROWS": 64, "SLOTS": slots, "POLICY": policy}
        yield Variant(f"schedule.admit {policy} slots={slots}", admit_kernel, types, constants, default=slots == 8)


def verify_variants():
    types = {
        **_pointers("*fp32", "temperature draft_temperature peaks sums log_q normalizers q_normalizers residuals"),
        **_pointers("*i32", "row_marker bests cu_seqlens status target_to_draft"),
        **_pointers("*i64", "draft seeds positions accepted emitting tokens"),
        **_pointers("*fp64", "uniforms"),
        **_pointers("i32", "logits_stride draft_stride q_row_stride q_slot_stride uniform_row_stride"),
        **_pointers("i32", "uniform_slot_stride V U K NB"),
    }
    # The stride of [R, K] tokens is K, which nothing makes divisible by 16.
    loose = tuple(name for name in STRIDES if name != "draft_stride")
    for dtype in DTYPES:
        yield Variant(
            f"verify.row_stats {dtype}",
            row_stats_kernel,
            {**types, "logits": DTYPES[dtype]},
            {"BLOCK": 1024},
            default=dtype == "bf16",
        )
    for q, sample, dtype in (
        ("one_hot", False, "bf16"),
        ("one_hot", True, "bf16"),
        ("logits", True, "bf16"),
        ("logits", True, "fp32"),
        ("recomputed", True, "bf16"),
    ):
        absent = {"uniforms": None}
        if q == "one_hot":
            absent.update(_pointers(None, "log_q q_logits q_normalizers q_latents q_w2"))
        if q != "recomputed":
            absent.update(q_latents=None, q_w2=None)
        if not sample:
            absent.update(seeds=None, positions=None)
        full = {**types, **_pointers(DTYPES[dtype], "logits q_logits q_latents q_w2")}
        label = f"q={q} {dtype}"
        default = q != "recomputed" and dtype == "bf16"
        accept = {**absent, "Q": q, "BLOCKS": 256, "SLOTS_P2": 8, "SAMPLE": sample, "KEYED": sample}
        yield Variant(
            f"verify.accept sample={sample} {label}", accept_kernel, full, accept, default=default, divisible=loose
        )
        if not sample:
            continue
        for pruned in (False, True):
            shape = {**absent, "RANK": 256 if q == "recomputed" else 16, "BLOCK": 1024, "Q": q}
            shape.update({} if pruned else {"target_to_draft": None})
            name = f"{label} pruned={pruned}"
            options = {
                "default": default and not pruned,
                "divisible": loose,
                "num_warps": 8 if q == "recomputed" else 4,
            }
            yield Variant(f"verify.residual {name}", residual_kernel, full, shape, **options)
            emit = {**shape, "BLOCKS": 256, "KEYED": True}
            yield Variant(f"verify.emit {name}", emit_kernel, full, emit, **options)


def loss_variants():
    types = {
        **_pointers("*i64", "labels draft_to_target"),
        **_pointers("*fp32", "ce_weights l1_weights ce l1"),
        **_pointers("i32", "draft_stride target_stride U V"),
    }
    for dtype, gradient, pruned in itertools.product(("bf16", "fp32"), (True, False), (False, True)):
        constants = {
            "BLOCK": 2048 if pruned else 4096,
            "GRADIENT": gradient,
            **({} if pruned else {"draft_to_target": None}),
        }
        yield Variant(
            f"linear_loss.row {dtype} gradient={gradient} pruned={pruned}",
            loss_row_kernel,
            {**types, **_pointers(DTYPES[dtype], "draft target")},
            constants,
            num_warps=8,
            default=dtype == "bf16" and not pruned,
        )


def variants() -> list[Variant]:
    """Every variant of the four packages."""
    return [*markov_variants(), *schedule_variants(), *verify_variants(), *loss_variants()]
