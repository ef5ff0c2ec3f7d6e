"""Eagle3: one layer that drafts token after token, each from the hidden state and the token before it.

An entry pairs the target's features at position i with the token at i + 1 and predicts the token at i + 2; its rotary
position is i. Drafting goes on from the last entry: the layer's own output takes the place of the features and the drafted
token that of the next one. Training unrolls the same chain over a whole row ("training-time test"). The model has no
mask token and no block; it knows nothing of the decode loop. Source: https://arxiv.org/abs/2503.01840, DeepSpec's variant.
"""

# B rows, T entries of a row, C context columns, H heads, E head dimension, D hidden, F features, K slots, J drafted entries

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from dspark_hf.models import DSparkDrafter
from dspark_hf.models.body_dspark import DSparkMLP, DSparkRMSNorm, rotate

from .configuration_eagle3 import Eagle3Config


@dataclass
class Chain:
    """
    Where a row's drafting stands.

    Attributes:
        hidden_BD: the layer's output of the last entry, before the final norm.
        position_B1: rotary position of that entry.
        keys_BHCE, values_BHCE: of the context's entries.
        visible: `[B, 1, 1, C]` bool, or `None` where all of them count.
        drafted: keys and values of the entries drafted since.
    """

    hidden_BD: torch.Tensor
    position_B1: torch.Tensor
    keys_BHCE: torch.Tensor
    values_BHCE: torch.Tensor
    visible: torch.Tensor | None
    drafted: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class Eagle3Attention(nn.Module):
    """Attention whose input is `[embedding; hidden]`, twice the usual width."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.q_norm = DSparkRMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = DSparkRMSNorm(config.head_dim, config.rms_norm_eps)

    def queries(self, pair_BTI: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return rotate(self.q_norm(self._heads(self.q_proj(pair_BTI))).transpose(1, 2), *rotary)

    def keys_values(self, pair_BTI: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]):
        keys = rotate(self.k_norm(self._heads(self.k_proj(pair_BTI))).transpose(1, 2), *rotary)
        return keys, self._heads(self.v_proj(pair_BTI)).transpose(1, 2)

    def attend(self, query, keys, values, visible, drafted) -> torch.Tensor:
        """
        Attention over the context and over one column per drafted entry: `[B, T, H * E]`.

        `drafted` holds, per step, keys and values of the same T rows; a row sees its own column only, so training over T rows
        is T chains side by side. Scores of those columns are products row by row.
        """
        keys, values = self._repeat(keys), self._repeat(values)
        scores = query @ keys.transpose(-1, -2)
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        own = [(query * self._repeat(key)).sum(-1, keepdim=True) for key, _ in drafted]
        weights = (torch.cat([scores, *own], dim=-1).float() * self.head_dim**-0.5).softmax(-1).to(values.dtype)
        context = scores.shape[-1]
        mixed = weights[..., :context] @ values
        for step, (_, value) in enumerate(drafted):
            mixed = mixed + weights[..., context + step, None] * self._repeat(value)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_dim))

    def _repeat(self, states: torch.Tensor) -> torch.Tensor:
        return states if self.groups == 1 else states.repeat_interleave(self.groups, dim=1)


class Eagle3Layer(nn.Module):
    """Reads `[norm(embedding); norm(hidden)]`, adds attention and feed-forward to the hidden state."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.self_attn = Eagle3Attention(config)
        self.mlp = DSparkMLP(config)
        self.input_layernorm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps)

    def pair(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Drafter(DSparkDrafter):
    r"""
    A serial drafter with the interface of a [`DSparkDrafter`]: `target.generate(..., assistant_model=drafter)` accepts it.

    `from_pretrained` opens DeepSpec's `Qwen3Eagle3Model` folders and its own. There is nothing to calibrate: without a
    confidence head the only policies are `full` and `auto`.
    """

    config_class = Eagle3Config
    _no_split_modules = ["Eagle3Layer"]

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        del self.hidden_norm
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.post_init()

    @property
    def layer(self) -> Eagle3Layer:
        layer = self.layers[0]
        assert isinstance(layer, Eagle3Layer)
        return layer

    def next_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Layer output `[..., D]`, before the final norm -> fp32 logits `[..., U]` of the token after the entry's."""
        return self.base_logits(self.norm(hidden))

    def forward(  # type: ignore[override]
        self,
        next_ids: torch.Tensor,
        context_hidden_states: torch.Tensor,
        *,
        steps: int,
        valid: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        The training-time test: every entry of a row drafts `steps` tokens, fed with the row's own tokens.

        Args:
            next_ids (`[B, T]` int64): token after each entry's position, `token_ids[:, 1:]`.
            context_hidden_states (`[B, T, F * target_hidden_size]`): target features of the positions `0 .. T - 1`.
            steps (`int`): depth K.
            valid (`[B, T]` bool, *optional*): `False` marks padding behind a row.

        Returns:
            `[B, T, K, D]` layer outputs before the final norm; slot k of entry i predicts token i + 1 + k, and is meaningless
            where that lies behind the row.
        """
        length = next_ids.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=next_ids.device).tril()[None, None]
        if valid is not None:
            # the diagonal stays, or a row of padding would have nothing to attend to
            visible = visible & (valid[:, None, None] | torch.eye(length, dtype=torch.bool, device=next_ids.device))
        hidden = self.fc(context_hidden_states.to(self.fc.weight.dtype))
        context: tuple[torch.Tensor, torch.Tensor] | None = None
        drafted: list[tuple[torch.Tensor, torch.Tensor]] = []
        outputs = []
        for step in range(steps):
            embedded = self.embed(torch.nn.functional.pad(next_ids[:, step:], (0, step)))
            pair = self.layer.pair(embedded, hidden)
            rotary = self.rotary_emb(torch.arange(step, step + length, device=next_ids.device)[None], pair.dtype)
            keys_values = self.layer.self_attn.keys_values(pair, rotary)
            if context is None:
                context = keys_values
            else:
                drafted.append(keys_values)
            query = self.layer.self_attn.queries(pair, rotary)
            keys, values = context
            attended = self.layer.self_attn.attend(query, keys, values, visible, drafted)
            hidden = self.layer.finish(hidden, attended)
            outputs.append(hidden)
        return torch.stack(outputs, dim=2)

    def start_chain(
        self,
        next_ids_BT: torch.Tensor,
        features_BTF: torch.Tensor,
        position_ids_BT: torch.Tensor,
        last_B: torch.Tensor,
        cache,
        visible: torch.Tensor | None = None,
    ) -> Chain:
        """
        Adds committed entries to the cache and stands at the last of them.

        Args:
            next_ids_BT (`[B, T]` int64): token after each new position.
            features_BTF (`[B, T, F * target_hidden_size]`): target features of the new positions.
            position_ids_BT (`[B, T]` int64): the new positions.
            last_B (`[B]` int64): index of each row's last valid entry among the T.
            cache: anything with `update(key, value, layer_idx)`; it receives committed entries only.
            visible (`[B, 1, 1, C]` bool, *optional*): columns of the cache that belong to the row.
        """
        hidden = self.fc(features_BTF.to(self.fc.weight.dtype))
        pair = self.layer.pair(self.embed(next_ids_BT), hidden)
        keys, values = self.layer.self_attn.keys_values(pair, self.rotary_emb(position_ids_BT, pair.dtype))
        keys, values = cache.update(keys, values, 0)
        chosen_B1 = last_B[:, None]
        # one layer: only the last entry's output is ever needed
        pair, hidden = (part.gather(1, chosen_B1[..., None].expand(-1, -1, part.shape[2])) for part in (pair, hidden))
        position_B1 = position_ids_BT.expand(len(last_B), -1).gather(1, chosen_B1)
        query = self.layer.self_attn.queries(pair, self.rotary_emb(position_B1, pair.dtype))
        attended = self.layer.self_attn.attend(query, keys, values, visible, [])
        return Chain(self.layer.finish(hidden, attended)[:, 0], position_B1, keys, values, visible)

    def extend_chain(self, chain: Chain, token_ids_B: torch.Tensor) -> None:
        """Drafts on from the token just chosen: one more entry, kept in the chain and nowhere else."""
        hidden = chain.hidden_BD[:, None]
        chain.position_B1 = chain.position_B1 + 1
        pair = self.layer.pair(self.embed(token_ids_B)[:, None], hidden)
        rotary = self.rotary_emb(chain.position_B1, pair.dtype)
        chain.drafted.append(self.layer.self_attn.keys_values(pair, rotary))
        query = self.layer.self_attn.queries(pair, rotary)
        attended = self.layer.self_attn.attend(query, chain.keys_BHCE, chain.values_BHCE, chain.visible, chain.drafted)
        chain.hidden_BD = self.layer.finish(hidden, attended)[:, 0]

    def draft_block(self, anchor_ids, context_hidden_states, **kwargs):
        raise NotImplementedError(
            "an Eagle3 drafter needs the context's tokens as well as its features: use target.generate(assistant_model=...)"
        )


__all__ = ["Chain", "Eagle3Drafter"]
