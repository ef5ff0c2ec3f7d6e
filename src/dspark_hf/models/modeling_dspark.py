"""The drafter: one pass over the anchor and `block_size - 1` mask tokens proposes a block of tokens.

Holds the module tree with DeepSpec's tensor names, the forward pass and plain block drafting. Knows nothing of the
decode loop, of scheduling and of kernels; those live in rooms of their own and call the methods here.
"""

# B rows, S new context tokens, C all context tokens, Q block rows, K slots, D hidden, F features, V target vocabulary,
# U draft vocabulary (V unless pruned), N independent blocks, r Markov rank

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig
from transformers import initialization as init

from .body_dspark import DSparkLayer, DSparkRMSNorm, DSparkRotaryEmbedding
from .configuration_dspark import DSparkConfig
from .heads_dspark import build_confidence_head, build_markov_head
from .masks_dspark import block_attention_mask
from .persistence_dspark import DSparkPersistence
from .policy_dspark import validated_policy


@dataclass
class DraftBlock:
    """
    One drafted block.

    Attributes:
        tokens (`torch.LongTensor` `[B, K]`): drafted ids in the *target's* vocabulary.
        logits (`torch.FloatTensor` `[B, K, V]`): Markov-corrected, fp32, before temperature; what was sampled from.
            `-inf` outside a pruned draft vocabulary.
        confidence_logits (`torch.FloatTensor` `[B, K]`, *optional*): raw, before calibration; `None` without the head.
        hidden_states (`torch.Tensor` `[B, K, D]`): final-norm output of each slot's row.
    """

    tokens: torch.Tensor
    logits: torch.Tensor
    confidence_logits: torch.Tensor | None
    hidden_states: torch.Tensor


class DSparkDrafter(DSparkPersistence):
    r"""
    A DSpark block drafter: `target.generate(..., assistant_model=drafter)` uses it after `import dspark_hf`.

    Attributes:
        policy (`dict`): how many drafted tokens are verified; set by [`~DSparkDrafter.set_policy`].
        cost_curve (`CostCurve`, *optional*): measured cost of this machine, used by the cost-aware policies.
        last_generation (`GenerationStats`, *optional*): what the latest `generate` call did.
        generation_config (`GenerationConfig`): `num_assistant_tokens` and `assistant_confidence_threshold` are honoured.

    Source: DSpark paper section 3; tensor names follow the DeepSpec checkpoints.
    """

    config: DSparkConfig
    embed_tokens: nn.Embedding
    lm_head: nn.Linear
    d2t: torch.Tensor
    config_class = DSparkConfig
    base_model_prefix = ""
    main_input_name = "block_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DSparkLayer"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}
    # the mask form of the vocabulary map is derived from `d2t`
    _keys_to_ignore_on_load_unexpected = [r"^t2d$"]

    def __init__(self, config: DSparkConfig):
        super().__init__(config)
        gemma = config.body == "gemma4"
        features = len(config.target_layer_ids) * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(features, config.hidden_size, bias=False)
        self.hidden_norm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=gemma)
        self.layers = nn.ModuleList([DSparkLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = DSparkRMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=gemma)
        self.rotary_emb = DSparkRotaryEmbedding(config)
        self.lm_head = nn.Linear(config.hidden_size, config.output_vocab_size, bias=False)
        self.markov_head = build_markov_head(config)
        self.confidence_head = build_confidence_head(config)
        if config.draft_vocab_size is not None:
            # offsets, as speculators stores them: target id = draft id + d2t[draft id]
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.generation_config = GenerationConfig()
        self.policy: dict[str, Any] = {"name": "auto"}
        self.cost_curve: Any = None
        self.last_generation: Any = None
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DSparkLayer) and module.sandwich:
            init.ones_(module.layer_scalar)
        if module is self and self.config.draft_vocab_size is not None:
            init.zeros_(self.d2t)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: Any) -> None:
        self.lm_head = value

    # -- forward ----------------------------------------------------------------------------------------------------

    def make_block(self, anchor_ids_B: torch.Tensor) -> torch.Tensor:
        """Anchor ids `[B]` -> block ids `[B, Q]`: the anchor, then mask tokens."""
        block_BQ = anchor_ids_B.new_full((anchor_ids_B.shape[0], self.config.block_size), self.config.mask_token_id)
        block_BQ[:, 0] = anchor_ids_B
        return block_BQ

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids `[...]` -> embeddings `[..., D]` as the layers see them."""
        embedded = self.embed_tokens(ids)
        if self.config.embedding_scale != 1.0:
            # the scale is rounded to the embedding's dtype first, as Gemma does
            embedded = embedded * torch.tensor(self.config.embedding_scale, dtype=embedded.dtype)
        return embedded

    def project_context(self, context_hidden_states_BSF: torch.Tensor) -> torch.Tensor:
        """Target features `[B, S, F * target_hidden_size]` -> context rows `[B, S, D]`."""
        weight = self.fc.weight
        return self.hidden_norm(self.fc(context_hidden_states_BSF.to(device=weight.device, dtype=weight.dtype)))

    def forward(
        self,
        block_ids: torch.Tensor,
        context_hidden_states: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        cache: Any = None,
    ) -> torch.Tensor:
        """
        Final-norm hidden states `[B, Q, D]` of the block rows.

        Args:
            block_ids (`[B, Q]` int64): one block (`make_block`), or many blocks side by side when training.
            context_hidden_states (`[B, S, F * target_hidden_size]`): target features of the context tokens that `cache`
                does not hold yet, layers concatenated in the order of `target_layer_ids`.
            position_ids (`[B, S + Q]` int64, *optional*): default continues after what the cache holds.
            attention_mask (*optional*): `[B, S]` or `[B, C]` (0 = padded context token; with `[B, S]` all cached tokens are
                visible), or boolean `[B, 1, Q, C + Q]` (True = visible), or a flex-attention `BlockMask`, or a dictionary of
                final masks by layer type.
            cache (*optional*): anything with `update(key, value, layer_idx)` and `get_seq_length()`; it receives context
                keys and values only, never those of the block.
        """
        num_cached = 0 if cache is None else cache.get_seq_length()
        num_new, num_rows = context_hidden_states.shape[1], block_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(num_cached, num_cached + num_new + num_rows, device=block_ids.device)[None]
        position_embeddings = self.rotary_emb(position_ids, self.fc.weight.dtype)
        masks = block_attention_mask(
            self.config, attention_mask, position_ids, num_cached, num_new, num_rows, dtype=self.fc.weight.dtype
        )
        context_BSD = self.project_context(context_hidden_states)
        hidden_BQD = self.embed(block_ids)
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            hidden_BQD = layer(hidden_BQD, context_BSD, position_embeddings, masks[kind], cache)
        return self.norm(hidden_BQD)

    def slot_hidden(self, hidden_BQD: torch.Tensor) -> torch.Tensor:
        """Rows that predict: `[B, Q, D]` -> `[B, K, D]`; the anchor's row is dropped where it is only an input."""
        return hidden_BQD if self.config.sample_from_anchor else hidden_BQD[:, 1:]

    def base_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states `[..., D]` -> fp32 logits `[..., U]` before any Markov bias."""
        logits = self.lm_head(hidden).float()
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def teacher_forced(
        self, hidden_NKD: torch.Tensor, prev_ids_NK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Both heads over whole blocks whose previous tokens are given.

        Returns:
            corrected logits `[N, K, U]` fp32 and raw confidence logits `[N, K]` fp32 (`None` without the head).
        """
        logits_NKU = self.base_logits(hidden_NKD)
        embeddings_NKr = None
        if self.markov_head is not None:
            latents_NKr, embeddings_NKr = self.markov_head.latents(hidden_NKD, prev_ids_NK)
            logits_NKU = logits_NKU + self.markov_head.bias(latents_NKr).float()
        if self.confidence_head is None:
            return logits_NKU, None
        return logits_NKU, self.confidence_head(hidden_NKD, embeddings_NKr)

    # -- drafting ---------------------------------------------------------------------------------------------------

    def target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Ids in the draft vocabulary -> ids in the target's."""
        return draft_ids if self.config.draft_vocab_size is None else draft_ids + self.d2t[draft_ids]

    def draft_to_target(self) -> torch.Tensor | None:
        """Target id of every draft id `[U]`, or `None` where the vocabulary is not pruned."""
        if self.config.draft_vocab_size is None:
            return None
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def set_draft_vocabulary(self, target_ids_U: torch.Tensor) -> None:
        """Stores the pruned vocabulary: sorted, distinct target ids, one per draft id."""
        ids = target_ids_U.to(self.d2t)
        if ids.shape != self.d2t.shape or not bool((ids.diff() > 0).all()):
            raise ValueError(
                f"the draft vocabulary must be {self.config.draft_vocab_size} distinct target ids in ascending order, "
                f"got {tuple(ids.shape)}"
            )
        if not 0 <= int(ids[0]) <= int(ids[-1]) < self.config.vocab_size:
            raise ValueError(f"draft vocabulary ids must be in [0, {self.config.vocab_size - 1}]")
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))

    def expand_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits `[..., U]` -> `[..., V]`, `-inf` for tokens the drafter cannot propose."""
        if self.config.draft_vocab_size is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float("-inf"))
        full[..., self.draft_to_target()] = logits
        return full

    @torch.no_grad()
    def draft_block(
        self,
        anchor_ids: torch.Tensor,
        context_hidden_states: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> DraftBlock:
        """
        Drafts one block per row.

        Args:
            anchor_ids (`[B]` int64): last committed token of each row.
            context_hidden_states (`[B, S, F * target_hidden_size]`): features of the committed tokens before the anchor;
                only the new ones if `cache` holds the rest.
            position_ids (`[B, S + Q]`, *optional*): see [`~DSparkDrafter.forward`].
            attention_mask (`[B, S]`, *optional*): 0 marks padding.
            cache (*optional*): keeps the context's keys and values between calls.
            temperature (`float`, defaults to 0.0): 0 drafts greedily, else slots are sampled from `softmax(logits / temperature)`.
            generator (`torch.Generator`, *optional*): source of the samples.
        """
        if temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        hidden_BQD = self(self.make_block(anchor_ids), context_hidden_states, position_ids, attention_mask, cache)
        hidden_BKD = self.slot_hidden(hidden_BQD)
        base_BKU = self.base_logits(hidden_BKD)
        prev_B, state, tokens, logits, confidences = anchor_ids, None, [], [], []
        if self.markov_head is not None:
            state = self.markov_head.initial_state(anchor_ids.shape[0], hidden_BKD[:, 0])
        for slot in range(self.config.num_slots):
            logits_BU, embedding_Br = base_BKU[:, slot], None
            if self.markov_head is not None:
                latent_Br, embedding_Br, state = self.markov_head.step(hidden_BKD[:, slot], prev_B, state)
                logits_BU = logits_BU + self.markov_head.bias(latent_Br).float()
            if self.confidence_head is not None:
                confidences.append(self.confidence_head(hidden_BKD[:, slot], embedding_Br))
            if temperature == 0:
                chosen_B = logits_BU.argmax(dim=-1)
            else:
                probabilities = (logits_BU / temperature).softmax(dim=-1)
                chosen_B = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
            prev_B = self.target_ids(chosen_B)
            tokens.append(prev_B)
            logits.append(logits_BU)
        return DraftBlock(
            tokens=torch.stack(tokens, dim=1),
            logits=self.expand_logits(torch.stack(logits, dim=1)),
            confidence_logits=torch.stack(confidences, dim=1) if confidences else None,
            hidden_states=hidden_BKD,
        )

    def set_policy(self, name: str, **knobs: Any) -> None:
        """
        Chooses how many drafted tokens are verified per round.

        Args:
            name (`str`): `"full"`, `"threshold"`, `"early_stop"`, `"lookahead"`, `"lagged_topk"`, `"optimal"` (greedy decoding
                only) or `"auto"`.
            knobs: `threshold` in [0, 1] for `"threshold"`: 0 verifies the whole block, 1 only what is certain; by default
                `generation_config.assistant_confidence_threshold`, else 0.5. `tiers`, the verification widths to choose from.

        Raises:
            ValueError: unknown name or knob, or a knob out of range.
        """
        self.policy = validated_policy(name, knobs)


__all__ = ["DSparkDrafter", "DraftBlock"]
