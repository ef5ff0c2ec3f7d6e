"""Markov drafting in plain torch: the definition that the Triton kernels are tested against, and the path on CPU.

    latent_k, state = head(w1[x_{k-1}], hidden_k, state)
    logits_k = round(base_k + w2 @ latent_k)            rounded to the storage type, then sampled
    x_k      ~ softmax(logits_k / temperature)          argmax at temperature 0
    c_k      = sigmoid((confidence . [hidden_k ; w1[x_{k-1}]]) / t_k + b_k),   survival_k = c_1 * ... * c_k

It knows nothing of models: weights come in as tensors with the names of the DeepSpec checkpoints.

Legend: R rows, K slots, U draft vocabulary, V target vocabulary, D hidden, r rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import embedding, linear

from .sampling import STREAM_DRAFT, inverse_cdf, keyed_uniforms


BLOCK = 128  # vocabulary block of the two-level inverse CDF; equals the tile of the Triton kernel
HEAD_TYPES = ("vanilla", "gated", "rnn")


class MarkovDraft(NamedTuple):
    """What one round of drafting produced.

    Args:
        tokens (`torch.Tensor`): int64 [R, K], ids of the target vocabulary.
        log_q (`torch.Tensor`): fp32 [R, K], log-probability of each token under the draft; 0 for greedy rows.
        log_normalizer (`torch.Tensor`): fp32 [R, K], logsumexp(logits / temperature); 0 for greedy rows.
        confidence_logits (`torch.Tensor`, *optional*): fp32 [R, K], raw, before temperature scaling.
        survival (`torch.Tensor`, *optional*): fp32 [R, K], product of the calibrated confidences so far.
        latents (`torch.Tensor`, *optional*): [R, K, r], what `w2` was multiplied with; None without a Markov head.
    """

    tokens: torch.Tensor
    log_q: torch.Tensor
    log_normalizer: torch.Tensor
    confidence_logits: torch.Tensor | None
    survival: torch.Tensor | None
    latents: torch.Tensor | None


def hidden_projection(head_type: str, hidden_RKD: torch.Tensor, weight: torch.Tensor, bias, rank: int) -> torch.Tensor:
    """The part of the gate or joint projection that does not depend on drafted tokens, for all slots at once."""
    hidden_size = hidden_RKD.shape[-1]
    columns = weight[:, :hidden_size] if head_type == "gated" else weight[:, 2 * rank :]
    return linear(hidden_RKD, columns, bias)


def head_step(head_type: str, embedding_Rr, projected, weight, state_Rr):
    """One step of a Markov head: `(latent, state)` for the embedding of the token before.

    `projected` is this slot's `hidden_projection`; `state_Rr` the state of an rnn head, else None.
    """
    if head_type == "vanilla":
        return embedding_Rr, None
    rank = embedding_Rr.shape[-1]
    if head_type == "gated":
        gate = torch.sigmoid(projected + linear(embedding_Rr, weight[:, -rank:]))
        return gate * embedding_Rr, None
    joint = projected + linear(torch.cat([state_Rr, embedding_Rr], dim=-1), weight[:, : 2 * rank])
    gate, candidate, output = joint.chunk(3, dim=-1)
    gate = torch.sigmoid(gate)
    return torch.tanh(output), gate * state_Rr + (1 - gate) * torch.tanh(candidate)


def confidence_from(hidden_RKD, embeddings_RKr, weight, bias, temperatures_K, biases_K):
    """`(confidence_logits, survival)` in fp32 from the confidence head `[D or D + r]` and its calibration."""
    hidden_size = hidden_RKD.shape[-1]
    weight = weight.reshape(-1).float()
    logits_RK = hidden_RKD.float() @ weight[:hidden_size] + bias.float()
    if weight.shape[0] > hidden_size:
        logits_RK = logits_RK + embeddings_RKr.float() @ weight[hidden_size:]
    scaled_RK = logits_RK if temperatures_K is None else logits_RK / temperatures_K
    scaled_RK = scaled_RK if biases_K is None else scaled_RK + biases_K
    return logits_RK, torch.sigmoid(scaled_RK).cumprod(-1)


def sample(logits_RU, temperature, uniforms_R2):
    """`(token, log_q, log_normalizer)` of one slot; `temperature` is a number or an fp32 tensor [R]."""
    if not samples(temperature):
        zeros = torch.zeros(logits_RU.shape[0], device=logits_RU.device)
        return logits_RU.argmax(-1), zeros, zeros
    greedy = None
    scaled_RU = logits_RU.float()
    if torch.is_tensor(temperature):
        greedy = temperature == 0
        scaled_RU = scaled_RU / torch.where(greedy, torch.ones_like(temperature), temperature)[:, None]
    elif temperature != 1:
        scaled_RU = scaled_RU / temperature
    peak_R1 = scaled_RU.amax(-1, keepdim=True)
    weights_RU = (scaled_RU - peak_R1).exp_()
    normalizer_R = peak_R1[:, 0] + weights_RU.sum(-1).log_()
    token_R = inverse_cdf(weights_RU, uniforms_R2, block=BLOCK).clamp_max(logits_RU.shape[1] - 1)
    if greedy is not None:
        token_R = torch.where(greedy, logits_RU.argmax(-1), token_R)
    log_q_R = scaled_RU.gather(1, token_R[:, None])[:, 0] - normalizer_R
    if greedy is not None:
        log_q_R, normalizer_R = log_q_R.masked_fill(greedy, 0.0), normalizer_R.masked_fill(greedy, 0.0)
    return token_R, log_q_R, normalizer_R


def samples(temperature) -> bool:
    """Whether any row may be sampled: a tensor may hold zeros, but looking would cost a host sync."""
    return torch.is_tensor(temperature) or temperature != 0


def check_randomness(temperature, uniforms, seeds, positions) -> None:
    """Refuse to sample without a source of randomness."""
    if samples(temperature) and uniforms is None and (seeds is None or positions is None):
        raise ValueError(
            "sampling a draft needs `uniforms` [R, K, 2] or `seeds` and `positions` [R]; got none. "
            "Pass one of them, or temperature=0.0 for greedy drafting."
        )


def draft_uniforms(temperature, uniforms_RK2, seeds_R, positions_R, slots: int):
    """Uniforms of every slot, or None where the temperature is the number 0 and nothing is random."""
    check_randomness(temperature, uniforms_RK2, seeds_R, positions_R)
    if uniforms_RK2 is not None or not samples(temperature):
        return uniforms_RK2
    steps_K = torch.arange(slots, device=seeds_R.device)
    return keyed_uniforms(seeds_R[:, None], positions_R[:, None] + steps_K, STREAM_DRAFT)


def check_head(head_type: str, w1, w2, hidden, projection_weight, confidence_weight) -> None:
    """Refuse a combination of head tensors that cannot be drafted with."""
    if (w1 is None) != (w2 is None):
        raise ValueError(
            "a Markov head needs both `w1` [V, r] and `w2` [U, r]; got one. Pass both, or neither for none."
        )
    if head_type not in HEAD_TYPES:
        raise ValueError(f"head_type must be one of {HEAD_TYPES}, got {head_type!r}.")
    projects = w1 is not None and head_type != "vanilla"
    if projects and projection_weight is None:
        raise ValueError(f"a {head_type} head needs `projection_weight`; pass its gate_proj or joint_proj weight.")
    if (projects or confidence_weight is not None) and hidden is None:
        raise ValueError("gated and rnn heads and the confidence head need `hidden` [R, K, D]; got None.")
    if confidence_weight is not None and w1 is None and confidence_weight.numel() != hidden.shape[-1]:
        raise ValueError(
            f"a confidence head of {confidence_weight.numel()} inputs needs the Markov embedding, but there is no Markov "
            f"head; expected {hidden.shape[-1]} inputs."
        )


def markov_draft(
    base_logits: torch.Tensor,
    anchor_ids: torch.Tensor,
    *,
    w1: torch.Tensor | None = None,
    w2: torch.Tensor | None = None,
    head_type: str = "vanilla",
    projection_weight: torch.Tensor | None = None,
    projection_bias: torch.Tensor | None = None,
    hidden: torch.Tensor | None = None,
    confidence_weight: torch.Tensor | None = None,
    confidence_bias: torch.Tensor | None = None,
    confidence_temperatures: torch.Tensor | None = None,
    confidence_biases: torch.Tensor | None = None,
    draft_to_target: torch.Tensor | None = None,
    temperature: float | torch.Tensor = 0.0,
    uniforms: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    store: bool = True,
) -> MarkovDraft:
    """Draft K tokens per row from a block's base logits and a low-rank Markov head.

    Args:
        base_logits (`torch.Tensor`): [R, K, U], any float type. With `store` it is overwritten by the corrected logits,
            rounded to its own type before sampling, so that q is exactly softmax(stored / temperature).
        anchor_ids (`torch.Tensor`): int64 [R], last committed token, target vocabulary.
        w1, w2 (`torch.Tensor`, *optional*): [V, r] and [U, r]; None drafts the slots independently.
        head_type (`str`): "vanilla", "gated" or "rnn".
        projection_weight, projection_bias (`torch.Tensor`, *optional*): `gate_proj` [r, D + r], input [hidden ; embedding];
            or `joint_proj` [3r, 2r + D], input [state ; embedding ; hidden], output [gate, candidate, output].
        hidden (`torch.Tensor`, *optional*): [R, K, D], final-norm hidden states; for gated, rnn and confidence.
        confidence_weight (`torch.Tensor`, *optional*): [D] or [D + r], input [hidden ; w1[previous]].
        confidence_bias (`torch.Tensor`, *optional*): one element; 0 when None.
        confidence_temperatures, confidence_biases (`torch.Tensor`, *optional*): fp32 [K], the calibration.
        draft_to_target (`torch.Tensor`, *optional*): int64 [U] for a pruned draft vocabulary.
        temperature (`float` or `torch.Tensor`): >= 0, one number or fp32 [R]; 0 is greedy.
        uniforms (`torch.Tensor`, *optional*): fp64 [R, K, 2] in [0, 1).
        seeds, positions (`torch.Tensor`, *optional*): int64 [R]; slot k uses Philox at position + k. For rows that sample.
        store (`bool`): whether corrected logits are written over `base_logits`.

    Returns:
        [`MarkovDraft`].

    Raises:
        ValueError: for head tensors that do not fit together, or sampling without randomness.
    """
    check_head(head_type, w1, w2, hidden, projection_weight, confidence_weight)
    rows, slots, _ = base_logits.shape
    uniforms_RK2 = draft_uniforms(temperature, uniforms, seeds, positions, slots)
    rank = 0 if w1 is None else w1.shape[1]
    projected_RK = None
    if w1 is not None and head_type != "vanilla":
        projected_RK = hidden_projection(head_type, hidden, projection_weight, projection_bias, rank)
    state_Rr = hidden.new_zeros(rows, rank) if head_type == "rnn" and w1 is not None else None
    previous_R = anchor_ids
    tokens, log_q, normalizers, embeddings, latents = [], [], [], [], []
    for slot in range(slots):
        logits_RU = base_logits[:, slot]
        if w1 is not None:
            embedding_Rr = embedding(previous_R, w1)
            projected = None if projected_RK is None else projected_RK[:, slot]
            latent_Rr, state_Rr = head_step(head_type, embedding_Rr, projected, projection_weight, state_Rr)
            bias_RU = linear(latent_Rr, w2)
            logits_RU = logits_RU.add_(bias_RU) if store else logits_RU.float() + bias_RU
            embeddings.append(embedding_Rr)
            latents.append(latent_Rr)
        uniforms_R2 = None if uniforms_RK2 is None else uniforms_RK2[:, slot]
        drawn_R, log_q_R, normalizer_R = sample(logits_RU, temperature, uniforms_R2)
        previous_R = drawn_R if draft_to_target is None else draft_to_target[drawn_R]
        tokens.append(previous_R)
        log_q.append(log_q_R)
        normalizers.append(normalizer_R)
    tokens_RK, log_q_RK, normalizer_RK = (torch.stack(column, dim=1) for column in (tokens, log_q, normalizers))
    confidence_RK = survival_RK = None
    if confidence_weight is not None:
        embeddings_RKr = torch.stack(embeddings, dim=1) if embeddings else None
        bias = hidden.new_zeros(()) if confidence_bias is None else confidence_bias.reshape(())
        confidence_RK, survival_RK = confidence_from(
            hidden, embeddings_RKr, confidence_weight, bias, confidence_temperatures, confidence_biases
        )
    latents_RKr = torch.stack(latents, dim=1) if latents else None
    return MarkovDraft(tokens_RK, log_q_RK, normalizer_RK, confidence_RK, survival_RK, latents_RKr)
