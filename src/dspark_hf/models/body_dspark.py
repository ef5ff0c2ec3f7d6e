"""Layers of the drafter's body: a bidirectional block whose keys and values also see projected target features.

The context enters every layer as keys and values only, `hidden_norm(fc(features))`, without the layer's input norm; its
keys and values may be kept in a cache. Two recipes share this file, `qwen3` and `gemma4`; their differences are fields
of the configuration. Knows nothing of heads, vocabularies or sampling.
"""

# B rows, S new context tokens, C all context tokens, Q block rows, H heads, D hidden, E head dimension

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class DSparkRMSNorm(nn.Module):
    """Root-mean-square norm in fp32; `gemma4` also multiplies by the weight in fp32, `qwen3` after the cast."""

    weight: nn.Parameter | None

    def __init__(self, size: int, eps: float, *, scale_in_fp32: bool = False, with_scale: bool = True):
        super().__init__()
        self.eps = eps
        self.scale_in_fp32 = scale_in_fp32
        self.register_parameter("weight", nn.Parameter(torch.ones(size)) if with_scale else None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = hidden.float()
        normed = normed * torch.rsqrt(normed.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight is None:
            return normed.to(hidden.dtype)
        if self.scale_in_fp32:
            return (normed * self.weight.float()).to(hidden.dtype)
        return self.weight * normed.to(hidden.dtype)


class DSparkRotaryEmbedding(nn.Module):
    """
    Rotary position embedding whose frequencies are computed in fp32 from the configuration when first needed.

    They are no buffer on purpose: a buffer is rounded by `.to(torch.bfloat16)` and holds noise after loading on `meta`.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self._by_device: dict[torch.device, tuple[torch.Tensor, float]] = {}

    def frequencies(self, device: torch.device) -> tuple[torch.Tensor, float]:
        """`(inv_freq [E / 2] fp32, attention scaling)` on a device."""
        if device not in self._by_device:
            kind = self.config.rope_parameters["rope_type"]
            if kind == "default":
                size, base = self.config.head_dim, self.config.rope_parameters["rope_theta"]
                exponents = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
                self._by_device[device] = (1.0 / base**exponents, 1.0)
            else:
                inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](self.config, device)
                self._by_device[device] = (inv_freq.float(), scaling)
        return self._by_device[device]

    @property
    def inv_freq(self) -> torch.Tensor:
        """fp32 frequencies on the CPU, whatever dtype the model has."""
        return self.frequencies(torch.device("cpu"))[0]

    def forward(self, positions_BT: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions `[B, T]` -> `(cos, sin)`, each `[B, 1, T, E]`."""
        inv_freq, scaling = self.frequencies(positions_BT.device)
        angles = positions_BT[:, None, :, None].float() * inv_freq
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates `[B, H, T, E]` by the angles of its positions (half-split layout)."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Plain attention, the oracle of the faster ones. `attention_mask`: additive `[B, 1, Q, T]` or `None`."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.float().softmax(dim=-1).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class DSparkAttention(nn.Module):
    """Block rows attend to the whole context and to the whole block, in both directions."""

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = False
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = 1.0 if config.body == "gemma4" else config.head_dim**-0.5
        query_size, key_size = (
            config.num_attention_heads * config.head_dim,
            config.num_key_value_heads * config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=config.attention_bias)
        self.v_proj = None
        if not config.attention_k_eq_v:
            self.v_proj = nn.Linear(config.hidden_size, key_size, bias=config.attention_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        gemma = config.body == "gemma4"
        self.q_norm = DSparkRMSNorm(config.head_dim, config.rms_norm_eps, scale_in_fp32=gemma)
        self.k_norm = DSparkRMSNorm(config.head_dim, config.rms_norm_eps, scale_in_fp32=gemma)
        self.v_norm = None
        if gemma:
            self.v_norm = DSparkRMSNorm(config.head_dim, config.rms_norm_eps, scale_in_fp32=True, with_scale=False)

    def forward(self, block_BQD, context_BSD, position_embeddings, attention_mask=None, cache=None):
        cos, sin = position_embeddings
        num_new = context_BSD.shape[1]
        query = self._heads(self.q_norm, self.q_proj(block_BQD))
        query = rotate(query, cos[:, :, num_new:], sin[:, :, num_new:])

        rows = torch.cat([context_BSD, block_BQD], dim=1)
        projected_key = self.k_proj(rows)
        key = rotate(self._heads(self.k_norm, projected_key), cos, sin)
        value = self._heads(self.v_norm, projected_key if self.v_proj is None else self.v_proj(rows))
        if cache is not None:
            context_key, context_value = cache.update(key[:, :, :num_new], value[:, :, :num_new], self.layer_idx)
            key = torch.cat([context_key, key[:, :, num_new:]], dim=2)
            value = torch.cat([context_value, value[:, :, num_new:]], dim=2)

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        attended, _ = attend(self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling)
        return self.o_proj(attended.flatten(2))

    def _heads(self, norm: nn.Module | None, projected: torch.Tensor) -> torch.Tensor:
        """`[B, T, H * E]` -> normed `[B, H, T, E]`."""
        heads = projected.unflatten(-1, (-1, self.head_dim))
        return (heads if norm is None else norm(heads)).transpose(1, 2)


class DSparkMLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


class DSparkLayer(GradientCheckpointingLayer):
    """One layer: pre-norm (`qwen3`) or sandwich norms and a scalar on the output (`gemma4`)."""

    layer_scalar: torch.Tensor

    def __init__(self, config, layer_idx: int):
        super().__init__()
        gemma = config.body == "gemma4"
        self.self_attn = DSparkAttention(config, layer_idx)
        self.mlp = DSparkMLP(config)
        self.input_layernorm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=gemma)
        self.post_attention_layernorm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=gemma)
        self.sandwich = gemma
        if gemma:
            self.pre_feedforward_layernorm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=True)
            self.post_feedforward_layernorm = DSparkRMSNorm(
                config.hidden_size, config.rms_norm_eps, scale_in_fp32=True
            )
            # never trained (DeepSpec ships 1.0), but part of the published state
            self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, block_BQD, context_BSD, position_embeddings, attention_mask=None, cache=None):
        normed = self.input_layernorm(block_BQD)
        attended = self.self_attn(normed, context_BSD, position_embeddings, attention_mask, cache)
        if not self.sandwich:
            block_BQD = block_BQD + attended
            return block_BQD + self.mlp(self.post_attention_layernorm(block_BQD))
        block_BQD = block_BQD + self.post_attention_layernorm(attended)
        fed = self.mlp(self.pre_feedforward_layernorm(block_BQD))
        return (block_BQD + self.post_feedforward_layernorm(fed)) * self.layer_scalar
