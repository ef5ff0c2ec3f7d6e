"""Drafting inside the decode loop: a block of candidates for every row, and the exact distribution they came from.

Two ways to the same thing. Without processors, or with a temperature alone, all slots go through `ops.markov_draft` in
one call. With other processors the slots are drafted one by one, each from its processed scores, so that q is what was
sampled. Knows nothing of the target, of lengths to verify or of stopping.
"""

# R rows, K slots drafted, U draft vocabulary, V target vocabulary, D hidden, Q block rows

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import logits_process as lp

from dspark_hf import ops

from .context import DraftContext
from .processors import ScorePlan
from .rows import TokenRows


@dataclass
class Draft:
    """
    Attributes:
        tokens_RK: candidates, target vocabulary.
        logits_RKU (fp32): scores the tokens were chosen from; q = softmax(logits / temperature).
        log_q_RK, log_normalizer_RK (fp32): of the tokens and of the slots; 0 for greedy drafts.
        temperature (`float`): of q; 0 for greedy drafts.
        draft_to_target (`[U]` int64, *optional*): target ids of the scores' columns; `None` where they are target ids.
        confidence_RK (fp32, *optional*): raw confidence logits.
        limits (`list[int]`): candidates of each row worth verifying; shorter where the row drafted its end token.
        ended (`list[bool]`): whether the last of those candidates is an end token.
    """

    tokens_RK: torch.Tensor
    logits_RKU: torch.Tensor
    log_q_RK: torch.Tensor
    log_normalizer_RK: torch.Tensor
    temperature: float
    draft_to_target: torch.Tensor | None
    confidence_RK: torch.Tensor | None
    limits: list[int]
    ended: list[bool]

    @property
    def margins_RK(self) -> torch.Tensor:
        """Difference of the two best scores of every slot; a function of the tokens before the slot, not of its own."""
        best_RK2 = self.logits_RKU.topk(2, dim=-1).values
        return best_RK2[..., 0] - best_RK2[..., 1]


class DSparkCandidateGenerator:
    """
    Args:
        drafter (`DSparkDrafter`): the model.
        plan (`ScorePlan`): processors that may see drafted tokens.
        context (`DraftContext`): one entry per row.
        do_sample (`bool`): sample slots, else take the most likely token.
        eos_ids (`frozenset[int]`): tokens after which a row need not be drafted further.
    """

    def __init__(
        self, drafter: Any, plan: ScorePlan, context: DraftContext, *, do_sample: bool, eos_ids: frozenset[int]
    ):
        self.drafter = drafter
        self.plan = plan
        self.context = context
        self.do_sample = do_sample
        self.eos_ids = eos_ids
        self.temperature = 1.0 if do_sample else 0.0
        self.one_call = not plan.processors
        if do_sample and [type(processor) for processor in plan.processors] == [lp.TemperatureLogitsWarper]:
            self.temperature, self.one_call = float(plan.processors[0].temperature), True
        self._head = _head_tensors(drafter)

    def propose(self, rows: TokenRows, slots: int) -> Draft:
        """Drafts `slots` candidates for every row (at most the block's)."""
        drafter = self.drafter
        inputs = self.context.prepare(drafter.config.block_size)
        device = drafter.fc.weight.device
        anchors_R = rows.anchors_R.to(device)
        hidden_RQD = drafter(
            drafter.make_block(anchors_R),
            inputs.features_RSF,
            position_ids=inputs.position_ids_RT.to(device),
            attention_mask=None if inputs.mask is None else inputs.mask.to(device),
            cache=self.context.cache,
        )
        self.context.settle()
        hidden_RKD = drafter.slot_hidden(hidden_RQD)[:, :slots]
        base_RKU = drafter.base_logits(hidden_RKD)
        if self.one_call:
            return self._draft_in_one_call(base_RKU, hidden_RKD, anchors_R)
        return self._draft_slot_by_slot(base_RKU, hidden_RKD, anchors_R, rows)

    def _draft_in_one_call(self, base_RKU, hidden_RKD, anchors_R) -> Draft:
        rows, slots = base_RKU.shape[:2]
        uniforms = None
        if self.do_sample:
            uniforms = torch.rand(rows, slots, 2, dtype=torch.float64, device=base_RKU.device)
        drafted = ops.markov_draft(
            base_RKU, anchors_R, temperature=self.temperature, uniforms=uniforms, hidden=hidden_RKD, **self._head
        )
        return Draft(
            drafted.tokens,
            base_RKU,
            drafted.log_q,
            drafted.log_normalizer,
            self.temperature,
            self._head["draft_to_target"],
            drafted.confidence_logits,
            [slots] * rows,
            [False] * rows,
        )

    def _draft_slot_by_slot(self, base_RKU, hidden_RKD, anchors_R, rows: TokenRows) -> Draft:
        drafter, markov = self.drafter, self.drafter.markov_head
        count, slots = base_RKU.shape[:2]
        limits, ended = [slots] * count, [False] * count
        previous_R, embeddings, tokens, scores = anchors_R, [], [], []
        state = None if markov is None else markov.initial_state(count, hidden_RKD[:, 0])
        for slot in range(slots):
            logits_RU = base_RKU[:, slot]
            if markov is not None:
                latent_Rr, embedding_Rr, state = markov.step(hidden_RKD[:, slot], previous_R, state)
                logits_RU = logits_RU + markov.bias(latent_Rr).float()
                embeddings.append(embedding_Rr)
            raw_RV = drafter.expand_logits(logits_RU)
            open_rows = [int(limit > slot) for limit in limits]
            prefixes = [length + slot for length in rows.lengths]
            processed_RV = self.plan.process(
                raw_RV[:, None].to(rows.ids_RC.device), rows.ids_RC, prefixes, open_rows, rows.origins
            )[:, 0].to(raw_RV.device)
            possible_R = processed_RV.amax(dim=-1) > float("-inf")
            processed_RV = torch.where(possible_R[:, None], processed_RV, raw_RV)
            if self.do_sample:
                previous_R = torch.multinomial(processed_RV.softmax(dim=-1), 1)[:, 0]
            else:
                previous_R = processed_RV.argmax(dim=-1)
            tokens.append(previous_R)
            scores.append(processed_RV)
            if self.plan.context_free:
                continue
            # processors read the drafted prefix, which must neither pass an end token nor leave their support
            rows.write(previous_R[:, None], slot)
            for row, (token, possible) in enumerate(zip(previous_R.tolist(), possible_R.tolist(), strict=True)):
                if limits[row] > slot and not possible:
                    limits[row] = slot
                elif limits[row] > slot and token in self.eos_ids:
                    limits[row], ended[row] = slot + 1, True
            if max(limits) <= slot + 1:
                break
        tokens_RK, scores_RKV = torch.stack(tokens, dim=1), torch.stack(scores, dim=1)
        normalizer_RK = scores_RKV.logsumexp(dim=-1)
        log_q_RK = scores_RKV.gather(-1, tokens_RK[..., None])[..., 0] - normalizer_RK
        confidence_RK = None
        if drafter.confidence_head is not None:
            drafted = len(tokens)
            embeddings_RKr = torch.stack(embeddings, dim=1) if embeddings else None
            confidence_RK = drafter.confidence_head(hidden_RKD[:, :drafted], embeddings_RKr)
        limits = [min(limit, len(tokens)) for limit in limits]
        return Draft(
            tokens_RK, scores_RKV, log_q_RK, normalizer_RK, float(self.do_sample), None, confidence_RK, limits, ended
        )


# drafter class -> what drives it, for drafters that choose their tokens in a way of their own
GENERATORS: dict[type, type[DSparkCandidateGenerator]] = {}


def candidate_generator(
    drafter: Any, plan: ScorePlan, context: DraftContext, *, do_sample: bool, eos_ids: frozenset[int]
) -> DSparkCandidateGenerator:
    """The generator of a drafter's class: the one registered for it or a base class, else the block drafter's."""
    registered = (GENERATORS[kind] for kind in type(drafter).__mro__ if kind in GENERATORS)
    return next(registered, DSparkCandidateGenerator)(drafter, plan, context, do_sample=do_sample, eos_ids=eos_ids)


def _head_tensors(drafter: Any) -> dict[str, Any]:
    """Weights of both heads under the names of `ops.markov_draft`."""
    config, markov, confidence = drafter.config, drafter.markov_head, drafter.confidence_head
    tensors: dict[str, Any] = {"draft_to_target": drafter.draft_to_target()}
    if markov is not None:
        tensors |= {"w1": markov.markov_w1.weight, "w2": markov.markov_w2.weight, "head_type": config.markov_head_type}
        projection = {"vanilla": None, "gated": "gate_proj", "rnn": "joint_proj"}[config.markov_head_type]
        if projection is not None:
            layer = markov.get_submodule(projection)
            tensors |= {"projection_weight": layer.weight, "projection_bias": layer.bias}
    if confidence is not None:
        tensors |= {"confidence_weight": confidence.proj.weight, "confidence_bias": confidence.proj.bias}
    return tensors
