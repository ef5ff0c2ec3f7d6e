"""Launches the Markov drafting kernels; same signature and meaning as `reference.markov_draft`.

Legend: R rows, K slots, U draft vocabulary, V target vocabulary, D hidden, r rank.
"""

from __future__ import annotations

import torch
import triton

from .draft_kernels import finish_kernel, tile_kernel
from .random_triton import INTERPRETED
from .reference import (
    BLOCK,
    MarkovDraft,
    check_head,
    check_randomness,
    confidence_from,
    hidden_projection,
    samples,
)


def rows_per_tile(rows: int, dtype: torch.dtype) -> int:
    """Rows that share one read of a W2 tile; 64 reach the wide matrix instructions, but in fp32 they would spill."""
    return 16 if rows <= 16 or dtype == torch.float32 else 64


def _confidence(hidden, weight, bias):
    """`(hidden part [R, K], embedding part [r] or None)` of the confidence head in fp32."""
    hidden_size = hidden.shape[-1]
    flat = weight.reshape(-1).float()
    logits_RK = hidden.float() @ flat[:hidden_size]
    if bias is not None:
        logits_RK = logits_RK + bias.float()
    return logits_RK.contiguous(), flat[hidden_size:].contiguous() if flat.numel() > hidden_size else None


class _Round:
    """Buffers and launches of one block of L lines; a line is a row, or a (row, slot) where slots are independent."""

    def __init__(self, logits_LKU, temperature, randomness, draft_to_target, store):
        self.logits, self.draft_to_target, self.store = logits_LKU, draft_to_target, store
        self.lines, self.slots, self.width = logits_LKU.shape
        self.blocks = triton.cdiv(self.width, BLOCK)
        self.uniforms, self.seeds, self.positions = randomness
        self.sample = samples(temperature)
        if torch.is_tensor(temperature):
            self.temperature = temperature.to(torch.float32).contiguous()
        else:
            self.temperature = torch.full((self.lines,), float(temperature), device=logits_LKU.device)
        self.peaks, self.sums = self._new(self.blocks), self._new(self.blocks)
        self.bests = self._new(self.blocks, dtype=torch.int32)
        self.tokens = self._new(self.slots, dtype=torch.int64)
        self.log_q, self.normalizers = self._new(self.slots), self._new(self.slots)
        self.confidence_logits = self.survival = None
        self.w1 = self.w2 = self.latents = self.states = self.projected = self.projection = None
        self.head_type, self.rank, self.embedding_column = "vanilla", 1, 0
        self.hidden_confidence = self.confidence_weight = self.calibration_t = self.calibration_b = None

    def _new(self, *shape, dtype=torch.float32):
        return torch.empty(self.lines, *shape, dtype=dtype, device=self.logits.device)

    def add_head(self, head_type, w1, w2, hidden, weight, bias):
        self.head_type, self.w1, self.w2, self.rank = head_type, w1.contiguous(), w2.contiguous(), w1.shape[1]
        shape = (self.slots + 1, self.lines, self.rank)
        self.latents = torch.empty(shape, dtype=w1.dtype, device=w1.device)
        if head_type != "vanilla":
            self.projection = weight
            self.projected = hidden_projection(head_type, hidden, weight, bias, self.rank).contiguous()
            self.embedding_column = self.rank if head_type == "rnn" else hidden.shape[-1]
        if head_type == "rnn":
            self.states = torch.zeros(shape, dtype=w1.dtype, device=w1.device)

    def add_confidence(self, hidden, weight, bias, temperatures, biases):
        self.hidden_confidence, self.confidence_weight = _confidence(hidden, weight, bias)
        self.calibration_t, self.calibration_b = temperatures, biases
        self.confidence_logits, self.survival = self._new(self.slots), self._new(self.slots)

    def tile(self, slot: int) -> None:
        logits_LU = self.logits[:, slot]
        block_r = rows_per_tile(self.lines, logits_LU.dtype if self.w2 is None else self.w2.dtype)
        tile_kernel[(self.blocks, triton.cdiv(self.lines, block_r))](
            logits_LU,
            logits_LU.stride(0),
            self.w2,
            None if self.latents is None else self.latents[slot],
            self.temperature,
            self.peaks,
            self.sums,
            self.bests,
            self.lines,
            self.width,
            self.blocks,
            RANK=self.rank,
            BLOCK_R=block_r,
            BLOCK=BLOCK,
            BLOCK_K=max(16, min(64, triton.next_power_of_2(self.rank))),
            HAS_BIAS=self.w2 is not None,
            STORE=self.store and self.w2 is not None,
            DOT_FP32=INTERPRETED or (self.w2 is not None and self.w2.dtype == torch.float32),
            num_warps=4,
        )

    def finish(self, slot: int, anchor_ids) -> None:
        logits_LU = self.logits[:, max(slot, 0)]
        finish_kernel[(self.lines,)](
            logits_LU,
            logits_LU.stride(0),
            self.w1,
            self.w2,
            self.latents,
            self.states,
            self.projected,
            self.projection,
            0 if self.projection is None else self.projection.stride(0),
            self.embedding_column,
            anchor_ids,
            self.draft_to_target,
            self.temperature,
            self.peaks,
            self.sums,
            self.bests,
            self.uniforms,
            self.seeds,
            self.positions,
            self.tokens,
            self.log_q,
            self.normalizers,
            self.hidden_confidence,
            self.confidence_weight,
            self.calibration_t,
            self.calibration_b,
            self.confidence_logits,
            self.survival,
            slot,
            self.lines,
            self.slots,
            self.width,
            self.blocks,
            HEAD=self.head_type,
            RANK=self.rank,
            RANK_P2=triton.next_power_of_2(self.rank),
            BLOCK=BLOCK,
            BLOCKS=triton.next_power_of_2(self.blocks),
            BLOCK_O=min(16, triton.next_power_of_2(self.rank)),
            FIRST=slot < 0,
            LAST=slot == self.slots - 1,
            HAS_BIAS=self.w2 is not None,
            STORE=self.store,
            SAMPLE=self.sample,
            KEYED=self.uniforms is None and self.seeds is not None,
            CONFIDENCE=self.survival is not None,
            num_warps=4,
        )


def markov_draft(
    base_logits,
    anchor_ids,
    *,
    w1=None,
    w2=None,
    head_type="vanilla",
    projection_weight=None,
    projection_bias=None,
    hidden=None,
    confidence_weight=None,
    confidence_bias=None,
    confidence_temperatures=None,
    confidence_biases=None,
    draft_to_target=None,
    temperature=0.0,
    uniforms=None,
    seeds=None,
    positions=None,
    store=True,
) -> MarkovDraft:
    """See [`reference.markov_draft`]."""
    check_head(head_type, w1, w2, hidden, projection_weight, confidence_weight)
    check_randomness(temperature, uniforms, seeds, positions)
    rows, slots, width = base_logits.shape
    if base_logits.stride(-1) != 1:
        raise ValueError(f"base_logits must be contiguous along the vocabulary; got strides {base_logits.stride()}.")
    uniforms = None if uniforms is None else uniforms.contiguous()
    if w1 is None:
        return _independent_slots(
            base_logits,
            (uniforms, seeds, positions),
            temperature,
            draft_to_target,
            (hidden, confidence_weight, confidence_bias, confidence_temperatures, confidence_biases),
        )
    block = _Round(base_logits, temperature, (uniforms, seeds, positions), draft_to_target, store)
    block.add_head(head_type, w1, w2, hidden, projection_weight, projection_bias)
    if confidence_weight is not None:
        block.add_confidence(hidden, confidence_weight, confidence_bias, confidence_temperatures, confidence_biases)
    block.finish(-1, anchor_ids)
    for slot in range(slots):
        block.tile(slot)
        block.finish(slot, anchor_ids)
    latents = block.latents[:slots].transpose(0, 1)
    return MarkovDraft(block.tokens, block.log_q, block.normalizers, block.confidence_logits, block.survival, latents)


def _independent_slots(base_logits, randomness, temperature, draft_to_target, confidence) -> MarkovDraft:
    """Without a Markov head the slots do not depend on each other: two launches draft all of them."""
    rows, slots, width = base_logits.shape
    uniforms, seeds, positions = randomness
    if uniforms is None and seeds is not None:
        positions = (positions[:, None] + torch.arange(slots, device=positions.device)).reshape(-1)
        seeds = seeds.repeat_interleave(slots)
    if torch.is_tensor(temperature):
        temperature = temperature.repeat_interleave(slots)
    lines_LU = base_logits.reshape(rows * slots, 1, width)
    block = _Round(lines_LU, temperature, (uniforms, seeds, positions), draft_to_target, store=False)
    block.tile(0)
    block.finish(0, None)
    hidden, weight, bias, temperatures, biases = confidence
    logits_RK = survival_RK = None
    if weight is not None:
        bias = hidden.new_zeros(()) if bias is None else bias.reshape(())
        logits_RK, survival_RK = confidence_from(hidden, None, weight, bias, temperatures, biases)
    shaped = (part.view(rows, slots) for part in (block.tokens, block.log_q, block.normalizers))
    return MarkovDraft(*shaped, logits_RK, survival_RK, None)
