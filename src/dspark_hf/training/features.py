"""Target features: selected layers of every token and the post-norm last hidden state where the answer is predicted.

Only hidden states are read, O(d) a token; the target's head never runs, its logits are rebuilt from the last hidden state where
a slot needs them (`TeacherHead`). Features are bfloat16 or float32, never float16, which residual streams of the Gemma kind
overflow.

It knows nothing of files (see `cache.py`), anchors or losses.
"""

# L tokens of a row, C answer tokens, F feature layers, D width of the target

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from .rows import Row
from .teacher import TeacherHead, outside_logits


OUTSIDE_CHUNK = 64


@dataclass(frozen=True)
class RowFeatures:
    """What the target gives for one row.

    Attributes:
        context: `[L - 1, F * D]`, outputs of the feature layers for all tokens but the last, layers concatenated in order.
        teacher: `[C - 1, D]`, post-norm last hidden states at the positions that predict answer tokens 2 .. C.
        outside: `[C - 1]` float32, logit of all tokens outside a pruned draft vocabulary, if the source was given one.
    """

    context: torch.Tensor
    teacher: torch.Tensor
    outside: torch.Tensor | None = None


class FeatureSource(Protocol):
    """Where a trainer gets features from: the target itself, or a cache of it."""

    def read(self, rows: Sequence[Row]) -> list[RowFeatures]: ...


class TargetFeatures:
    """Online features: one forward pass of the target's decoder over right-padded rows.

    Args:
        target (`PreTrainedModel`): any causal language model whose decoder returns hidden states.
        layer_ids (`list[int]`): layers whose outputs are read; -1 is the embedding output.
        max_tokens (`int`): padded tokens of one forward pass.
        vocabulary_U (`torch.Tensor`, *optional*): `[U]` target ids of a pruned draft vocabulary. Then the head runs once over
            the supervised positions, a few at a time, for `RowFeatures.outside`; worth it where features are kept.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        layer_ids: Sequence[int],
        *,
        max_tokens: int = 8192,
        vocabulary_U: torch.Tensor | None = None,
    ):
        layers = target.config.get_text_config().num_hidden_layers
        wrong = [layer for layer in layer_ids if not -1 <= layer < layers - 1]
        if wrong or not layer_ids:
            raise ValueError(
                f"target_layer_ids must name outputs of layers -1 .. {layers - 2} of this {layers}-layer target, not "
                f"{list(layer_ids)}; the last layer is refused because it is returned after the final norm."
            )
        self.target = target
        self.layer_ids = list(layer_ids)
        self.max_tokens = max_tokens
        self.decoder = target.get_decoder()
        self.vocabulary_U = None if vocabulary_U is None else vocabulary_U.to(target.device)

    @property
    def width(self) -> int:
        """D, the target's hidden size."""
        return self.target.config.get_text_config().hidden_size

    def read(self, rows: Sequence[Row]) -> list[RowFeatures]:
        """Features of rows, in their order.

        Raises:
            ValueError: a hidden state is NaN or infinite; names the row.
        """
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].token_ids))
        found: dict[int, RowFeatures] = {}
        group: list[int] = []
        for index in order:
            if group and (len(group) + 1) * len(rows[index].token_ids) > self.max_tokens:
                found.update(zip(group, self._forward([rows[each] for each in group]), strict=True))
                group = []
            group.append(index)
        found.update(zip(group, self._forward([rows[each] for each in group]), strict=True))
        return [found[index] for index in range(len(rows))]

    @torch.no_grad()
    def _forward(self, rows: list[Row]) -> list[RowFeatures]:
        device = self.target.device
        lengths = [len(row.token_ids) - 1 for row in rows]
        ids_BL = torch.zeros(len(rows), max(lengths), dtype=torch.long)
        mask_BL = torch.zeros_like(ids_BL)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            ids_BL[index, :length] = torch.tensor(row.token_ids[:-1])
            mask_BL[index, :length] = 1
        output = self.decoder(
            input_ids=ids_BL.to(device),
            attention_mask=mask_BL.to(device),
            output_hidden_states=[layer + 1 for layer in self.layer_ids],
            use_cache=False,
        )
        if output.hidden_states is None:
            raise ValueError(
                f"{type(self.decoder).__name__} returns no hidden states; DSpark cannot be trained for it."
            )
        layers = [_keep_range(output.hidden_states[layer + 1]) for layer in self.layer_ids]
        last = _keep_range(output.last_hidden_state)
        features = []
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            context = torch.cat([layer[index, :length] for layer in layers], dim=-1)
            # a copy, so that a kept row does not hold the whole padded batch
            teacher = last[index, len(row.prompt_ids) : length].clone()
            features.append(check_finite(RowFeatures(context, teacher, self._outside(teacher)), row.id))
        return features

    def _outside(self, teacher: torch.Tensor) -> torch.Tensor | None:
        if self.vocabulary_U is None:
            return None
        return outside_logits(teacher_head_of(self.target), teacher, self.vocabulary_U, chunk=OUTSIDE_CHUNK)


def check_finite(features: RowFeatures, name: str) -> RowFeatures:
    """The features, or a `ValueError` that names the row."""
    for part, values in features.__dict__.items():
        if values is not None and not torch.isfinite(values.float().sum()):
            raise ValueError(f"Row {name!r}: the target's {part} features hold NaN or infinity.")
    return features


def _keep_range(hidden: torch.Tensor) -> torch.Tensor:
    """float16 states become float32; everything else is kept."""
    return hidden.float() if hidden.dtype == torch.float16 else hidden


def teacher_head_of(target: PreTrainedModel) -> TeacherHead:
    """The target's output head with its soft-cap."""
    config = target.config.get_text_config()
    return TeacherHead(target.get_output_embeddings().weight, config.to_dict().get("final_logit_softcapping"))


@torch.no_grad()
def check_teacher_head(target: PreTrainedModel, head: TeacherHead, *, tolerance: float | None = None) -> float:
    """Compare the distribution rebuilt from features with the target's own, on eight arbitrary tokens.

    Args:
        target (`PreTrainedModel`), head ([`TeacherHead`]): what is compared.
        tolerance (`float`, *optional*): largest difference of a probability; by default 1e-4, in half precision 2e-2.

    Returns:
        `float`: the largest difference found.

    Raises:
        ValueError: the head does more than `softcap(hidden @ weight.T)`: scaled logits, a bias, or an adapter on the head.
    """
    ids = torch.arange(1, 9, device=target.device)[None] % target.config.get_text_config().vocab_size
    own = target(input_ids=ids, use_cache=False).logits.float().softmax(-1)
    hidden = target.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    difference = (head.logits(hidden).softmax(-1) - own).abs().max().item()
    allowed = tolerance or (1e-4 if target.dtype == torch.float32 else 2e-2)
    if difference > allowed:
        raise ValueError(
            f"Logits rebuilt from the target's last hidden state differ from its own by {difference:.2g} in probability; "
            f"{type(target).__name__} does more than a soft-capped linear head, which DSpark training does not know."
        )
    return difference


def describe_target(target: PreTrainedModel) -> dict[str, Any]:
    """What decides the values of features, as plain data: for manifests and resume checks."""
    config = target.config.get_text_config()
    return {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "dtype": str(target.dtype).removeprefix("torch."),
        "weights": weights_fingerprint(target),
    }


@torch.no_grad()
def weights_fingerprint(target: PreTrainedModel) -> str:
    """Digest (16 hex digits) of a few numbers of every weight: tells a fine-tuned target from its base in milliseconds."""
    digest = hashlib.sha256()
    for name, weight in sorted(target.named_parameters()):
        flat = weight.detach().flatten()
        picked = flat[:: max(len(flat) // 16, 1)][:16].float().cpu()
        digest.update(name.encode() + picked.numpy().tobytes())
    return digest.hexdigest()[:16]
