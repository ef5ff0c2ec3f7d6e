"""Logits processors inside a block: which may run on drafted tokens, which run in one go, which token by token.

Three kinds. *Context-free* ones (temperature, top-k, ...) look at the scores alone: one call for all positions.
*Stateless* ones (repetition penalty, n-grams, ...) are pure functions of the tokens before a position: they may run on
drafted prefixes too. All others may remember what they were called with, so they see every committed prefix exactly
once, in order, as in plain decoding, and never a drafted one.
"""

# R rows, Q positions, V vocabulary, N = R * Q

from __future__ import annotations

import torch
from transformers import LogitsProcessor
from transformers.generation import logits_process as lp
from transformers.utils import logging


logger = logging.get_logger(__name__)

CONTEXT_FREE: set[type] = {
    lp.TemperatureLogitsWarper,
    lp.TopPLogitsWarper,
    lp.TopKLogitsWarper,
    lp.MinPLogitsWarper,
    lp.TypicalLogitsWarper,
    lp.EpsilonLogitsWarper,
    lp.EtaLogitsWarper,
    lp.InfNanRemoveLogitsProcessor,
    lp.LogitNormalization,
    lp.SuppressTokensLogitsProcessor,
}
STATELESS: set[type] = CONTEXT_FREE | {
    lp.MinLengthLogitsProcessor,
    lp.MinNewTokensLengthLogitsProcessor,
    lp.RepetitionPenaltyLogitsProcessor,
    lp.EncoderRepetitionPenaltyLogitsProcessor,
    lp.NoRepeatNGramLogitsProcessor,
    lp.EncoderNoRepeatNGramLogitsProcessor,
    lp.SequenceBiasLogitsProcessor,
    lp.NoBadWordsLogitsProcessor,
    lp.PrefixConstrainedLogitsProcessor,
    lp.ForcedBOSTokenLogitsProcessor,
    lp.ForcedEOSTokenLogitsProcessor,
    lp.ExponentialDecayLengthPenalty,
    lp.SuppressTokensAtBeginLogitsProcessor,
}
# these hold one entry per row of the original batch
INDEXED: set[type] = {
    lp.RepetitionPenaltyLogitsProcessor,
    lp.EncoderRepetitionPenaltyLogitsProcessor,
    lp.EncoderNoRepeatNGramLogitsProcessor,
    lp.PrefixConstrainedLogitsProcessor,
}


def register_stateless(processor_class: type[LogitsProcessor]) -> type[LogitsProcessor]:
    """
    Declares that a processor is a pure function of `(input_ids, scores)`, row by row; usable as a class decorator.

    It is then also applied to drafted tokens (more of them are accepted) and allowed for several rows.
    """
    STATELESS.add(processor_class)
    return processor_class


class ScorePlan:
    """The processors of one call, applied to the positions of a block."""

    def __init__(self, processors: list[LogitsProcessor], batch_size: int):
        self.processors = list(processors)
        self.batch_size = batch_size
        self.context_free = all(type(processor) in CONTEXT_FREE for processor in self.processors)
        self.unknown = [processor for processor in self.processors if type(processor) not in STATELESS]

    def for_drafting(self) -> ScorePlan:
        """The processors that may see drafted tokens; warns once about those left out."""
        if not self.unknown:
            return self
        names = ", ".join(sorted({type(processor).__name__ for processor in self.unknown}))
        logger.warning_once(
            f"{names} may keep state between calls and is not applied to drafted tokens, so fewer of them are accepted; the "
            "text is unchanged. Declare pure processors with dspark_hf.generation.register_stateless."
        )
        known = [processor for processor in self.processors if type(processor) in STATELESS]
        return ScorePlan(known, self.batch_size)

    def at_prefix(self, ids_1n: torch.Tensor, scores_1V: torch.Tensor) -> torch.Tensor:
        """One position of the only row, all processors in order."""
        for processor in self.processors:
            scores_1V = processor(ids_1n, scores_1V)
        return scores_1V

    def process(
        self,
        scores_RQV: torch.Tensor,
        ids_RC: torch.Tensor,
        prefixes: list[int],
        counts: list[int],
        origins: list[int],
    ) -> torch.Tensor:
        """
        All positions of all rows; only for stateless processors.

        Args:
            scores_RQV: fp32 scores; position q of row r follows `ids_RC[r, : prefixes[r] + q]`.
            counts: positions of each row that matter; later ones are left as they are by processors that look at tokens.
            origins: index of each row in the original batch.
        """
        rows, positions, vocabulary = scores_RQV.shape
        for processor in self.processors:
            if type(processor) in CONTEXT_FREE:
                flat_NV = processor(ids_RC[:1, :1], scores_RQV.reshape(rows * positions, vocabulary))
                scores_RQV = flat_NV.view(rows, positions, vocabulary)
            else:
                scores_RQV = self._token_by_token(processor, scores_RQV, ids_RC, prefixes, counts, origins)
        return scores_RQV

    def _token_by_token(self, processor, scores_RQV, ids_RC, prefixes, counts, origins):
        processed_RQV = scores_RQV.clone()
        for position in range(scores_RQV.shape[1]):
            groups: dict[int, list[int]] = {}
            for row, (prefix, count) in enumerate(zip(prefixes, counts, strict=True)):
                if position < count:
                    groups.setdefault(prefix + position, []).append(row)
            for length, group in groups.items():
                chosen = (
                    slice(group[0], group[0] + 1) if len(group) == 1 else torch.tensor(group, device=ids_RC.device)
                )
                ids, scores = ids_RC[chosen, :length], scores_RQV[chosen, position]
                if type(processor) in INDEXED and self.batch_size > 1:
                    answer = self._at_original_index(processor, ids, scores, [origins[row] for row in group])
                else:
                    answer = processor(ids, scores.clone())
                processed_RQV[chosen, position] = answer
        return processed_RQV

    def _at_original_index(self, processor, ids, scores, origins):
        """Puts the rows where the processor expects them; the other rows are filler."""
        filled_ids = ids[:1].expand(self.batch_size, -1).clone()
        filled_scores = scores[:1].expand(self.batch_size, -1).clone()
        where = torch.tensor(origins, device=ids.device)
        filled_ids[where], filled_scores[where] = ids, scores
        return processor(filled_ids, filled_scores)[where]
