"""The two heads of a drafter: the Markov head (what follows the token just drafted) and the confidence head.

Every Markov head is a bias of low rank over the vocabulary: `bias = W2 @ latent`. The types differ in the latent only:

    embedding e = W1[x_prev]
    vanilla     latent = e
    gated       latent = sigmoid(G [h; e]) * e
    rnn         gate, candidate, output = chunk(J [s; e; h]);  s' = sigmoid(gate) * s + (1 - sigmoid(gate)) * tanh(candidate)
                latent = tanh(output)

Knows nothing of sampling, caches or the vocabulary's size limits. Source: DSpark paper section 3.1.
"""

# B rows, N independent blocks, K slots, D hidden, r Markov rank, U draft vocabulary, V target vocabulary

from __future__ import annotations

import torch
from torch import nn


class MarkovHead(nn.Module):
    """Low-rank next-token bias; `vanilla` has no further weights."""

    def __init__(self, vocab_size: int, output_vocab_size: int, rank: int):
        super().__init__()
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, output_vocab_size, bias=False)

    def initial_state(self, batch_size: int, like: torch.Tensor) -> torch.Tensor | None:
        """State before the first slot: `None` where the head has none, else zeros `[B, r]`."""
        return None

    def step(
        self, hidden_BD: torch.Tensor, prev_ids_B: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """One slot: returns `(latent [B, r], embedding [B, r], next state)`."""
        embedding_Br = self.markov_w1(prev_ids_B)
        return embedding_Br, embedding_Br, None

    def latents(self, hidden_NKD: torch.Tensor, prev_ids_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All slots at once, given the token before each: returns `(latents [N, K, r], embeddings [N, K, r])`."""
        embeddings_NKr = self.markov_w1(prev_ids_NK)
        return embeddings_NKr, embeddings_NKr

    def bias(self, latent: torch.Tensor) -> torch.Tensor:
        """`[..., r]` -> additive logits `[..., U]`."""
        return self.markov_w2(latent)


class GatedMarkovHead(MarkovHead):
    """Gates the embedding of the previous token with the slot's hidden state."""

    def __init__(self, vocab_size: int, output_vocab_size: int, rank: int, hidden_size: int):
        super().__init__(vocab_size, output_vocab_size, rank)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def step(self, hidden_BD, prev_ids_B, state):
        latent_Br, embedding_Br = self.latents(hidden_BD, prev_ids_B)
        return latent_Br, embedding_Br, None

    def latents(self, hidden_NKD, prev_ids_NK):
        embeddings_NKr = self.markov_w1(prev_ids_NK)
        gate_NKr = self.gate_proj(torch.cat([hidden_NKD, embeddings_NKr], dim=-1)).sigmoid()
        return gate_NKr * embeddings_NKr, embeddings_NKr


class RnnMarkovHead(MarkovHead):
    """Carries a state over the slots of a block, so that a slot depends on all tokens drafted before it."""

    def __init__(self, vocab_size: int, output_vocab_size: int, rank: int, hidden_size: int):
        super().__init__(vocab_size, output_vocab_size, rank)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def initial_state(self, batch_size: int, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(batch_size, self.rank)

    def step(self, hidden_BD, prev_ids_B, state):
        embedding_Br = self.markov_w1(prev_ids_B)
        joint = self.joint_proj(torch.cat([state, embedding_Br, hidden_BD], dim=-1))
        gate_Br, candidate_Br, output_Br = joint.chunk(3, dim=-1)
        gate_Br = gate_Br.sigmoid()
        state = gate_Br * state + (1 - gate_Br) * candidate_Br.tanh()
        return output_Br.tanh(), embedding_Br, state

    def latents(self, hidden_NKD, prev_ids_NK):
        state = self.initial_state(hidden_NKD.shape[0], hidden_NKD)
        steps = []
        for slot in range(hidden_NKD.shape[1]):
            latent_Nr, _, state = self.step(hidden_NKD[:, slot], prev_ids_NK[:, slot], state)
            steps.append(latent_Nr)
        return torch.stack(steps, dim=1), self.markov_w1(prev_ids_NK)


class ConfidenceHead(nn.Module):
    """P(slot accepted | all slots before it accepted), as a raw logit: a function of `h_k` and `x_{k-1}` only."""

    def __init__(self, hidden_size: int, rank: int):
        super().__init__()
        self.rank = rank
        self.proj = nn.Linear(hidden_size + rank, 1)

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor | None) -> torch.Tensor:
        """`hidden [..., D]`, `embedding [..., r]` (ignored where the head was built without it) -> fp32 logits `[...]`."""
        weight = self.proj.weight
        features = hidden
        if self.rank:
            assert embedding is not None
            features = torch.cat([hidden, embedding.to(hidden.dtype)], dim=-1)
        return self.proj(features.to(weight.dtype)).squeeze(-1).float()


def build_markov_head(config) -> MarkovHead | None:
    """The head a [`DSparkConfig`] describes, or `None` for `markov_rank == 0`."""
    if config.markov_rank == 0:
        return None
    sizes = (config.vocab_size, config.output_vocab_size, config.markov_rank)
    if config.markov_head_type == "vanilla":
        return MarkovHead(*sizes)
    kind = {"gated": GatedMarkovHead, "rnn": RnnMarkovHead}[config.markov_head_type]
    return kind(*sizes, config.hidden_size)


def build_confidence_head(config) -> ConfidenceHead | None:
    """The head a [`DSparkConfig`] describes, or `None` where it is switched off."""
    if not config.enable_confidence_head:
        return None
    return ConfidenceHead(config.hidden_size, config.markov_rank if config.confidence_head_with_markov else 0)
