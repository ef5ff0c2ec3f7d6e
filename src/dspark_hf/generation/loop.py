"""The decode loop: prompt, then rounds of draft, verification and commit, for one row and for many.

The prompt's forward is a verification without a draft, so the first token takes the same path as all others. Everything a
round needs is a part of its own: drafting, verification, stopping, the target and its cache, outputs and statistics.
"""

# R rows, K slots, Q positions of one verification (longest length + 1), V vocabulary

from __future__ import annotations

import time

from dspark_hf.calibration.margin import LARGEST_MARGIN

from .candidates import Draft, DSparkCandidateGenerator, candidate_generator
from .context import DraftContext
from .lengths import VerificationLengths
from .outputs import Collector, RoundOutputs
from .processors import ScorePlan
from .request import GenerationRequest
from .rows import TokenRows
from .stats import GenerationStats, RoundRecord, current_listener
from .stopping import StopRule
from .target import Target, TargetOutput
from .verification import Verdict, Verifier, overlap


# a longer text grows its buffer when it gets there
RESERVED_TOKENS = 4096


class DecodeLoop:
    """
    Args:
        request (`GenerationRequest`): one call.
        target (`Target`): its rows are decoded together.
        origins (`list[int]`): their indices in the batch.
        rule, plan, collector, stats: shared by all loops of the call.
    """

    def __init__(
        self,
        request: GenerationRequest,
        target: Target,
        origins: list[int],
        *,
        rule: StopRule,
        plan: ScorePlan,
        collector: Collector,
        stats: GenerationStats,
    ):
        self.request = request
        self.target = target
        self.rule = rule
        self.plan = plan
        self.collector = collector
        self.stats = stats
        self.listener = current_listener()
        width = request.input_ids_BL.shape[1]
        room = min(rule.max_length, width + RESERVED_TOKENS) + request.drafter.config.block_size + 2
        self.rows = TokenRows(request.input_ids_BL[origins], origins, room)
        self.lengths = VerificationLengths(request, target.layout)
        self.verifier = Verifier(plan, request.drafter, do_sample=request.do_sample, eos_ids=rule.eos_ids)
        self.context = DraftContext([0] * len(origins))
        # rows that met a criterion but go on: plain decoding fills rows up only where there are end tokens
        self.met: dict[int, int] = {}

    def run(self) -> None:
        """Decodes until every row has ended."""
        started = time.perf_counter()
        output = self.target.prefill(self.rows.ids_RC[:, : self.rows.prompt_width])
        self.stats.prefill_seconds += time.perf_counter() - started
        self.context = self._context_of_prompt(output)
        drafting = candidate_generator(
            self.request.drafter,
            self.plan.for_drafting(),
            self.context,
            do_sample=self.request.do_sample,
            eos_ids=self.rule.eos_ids,
        )
        self._settle(output, None, [0] * len(self.rows), [0] * len(self.rows))
        while len(self.rows):
            began, count, drafting_before = time.perf_counter(), len(self.rows), self.stats.draft_seconds
            draft, drafted, lengths = self._draft(drafting)
            draft_seconds = None if draft is None else self.stats.draft_seconds - drafting_before
            started = time.perf_counter()
            output = self.target.verify(self.rows, lengths)
            self.stats.verify_seconds += time.perf_counter() - started
            self.stats.target_forwards += 1
            self._settle(output, draft, drafted, lengths)
            seconds = time.perf_counter() - began
            self.stats.round_seconds.append((count, 1 + max(lengths), draft_seconds, seconds))

    def _context_of_prompt(self, output: TargetOutput) -> DraftContext:
        """The drafter's context with the prompt's features, padding left out."""
        columns, mask_RL, features_RSF = self.target.prompt_columns, self.target.mask_RL, output.features_RSF
        new = features_RSF.shape[1]
        if mask_RL is None:
            first, counts = [columns - new] * len(self.rows), [new] * len(self.rows)
        else:
            first = mask_RL[:, : columns - new].sum(dim=1).tolist()
            new_mask_RS = mask_RL[:, columns - new : columns].to(features_RSF.device)
            counts = new_mask_RS.sum(dim=1).tolist()
            # real tokens first, in their order
            order_RS = new_mask_RS.argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
            features_RSF = features_RSF.gather(1, order_RS[..., None].expand(-1, -1, features_RSF.shape[2]))
        context = self.target.remembered_context(self.rows, first) or DraftContext(first)
        context.add(features_RSF, counts)
        return context

    def _draft(self, drafting: DSparkCandidateGenerator) -> tuple[Draft | None, list[int], list[int]]:
        """A block for every row that wants one: the draft, tokens drafted, and tokens to verify."""
        rows = self.rows
        room = [self.rule.max_length - length - 1 for length in rows.lengths]
        wants = self.lengths.should_draft(rows, [1 + space for space in room])
        self.stats.bypassed += sum(not want and space > 0 for want, space in zip(wants, room, strict=True))
        wants = [want and space > 0 for want, space in zip(wants, room, strict=True)]
        if not any(wants):
            return None, [0] * len(rows), [0] * len(rows)
        started = time.perf_counter()
        draft = drafting.propose(rows, self.lengths.num_slots)
        self.stats.draft_seconds += time.perf_counter() - started
        chosen = self.lengths.choose(draft, rows, wants)
        limits = self.target.room(rows, room)
        lengths = [min(each) for each in zip(chosen, draft.limits, limits, strict=True)]
        if max(lengths) > 0:
            rows.write(draft.tokens_RK[:, : max(lengths)])
        return draft, [self.lengths.num_slots if want else 0 for want in wants], lengths

    def _settle(self, output: TargetOutput, draft: Draft | None, drafted: list[int], lengths: list[int]) -> None:
        """Judges the drafts, commits what stands and the token after it, and lets ended rows go."""
        rows, width, prompt = self.rows, 1 + max(lengths), self.rows.generated[0] == 0
        attentions = "attentions" in self.collector.wanted
        # processors may write into what they are given
        logits_RQV = output.logits.padded_RQV.clone() if "logits" in self.collector.wanted else None
        verdict = self.verifier.judge(output.logits, rows, draft, lengths)
        outputs = RoundOutputs(
            verdict.scores,
            logits_RQV,
            output.model_output,
            self.target.attention_spans(rows) if attentions else None,
            self.target.attention_windows() if attentions else [],
            prompt,
        )
        kept, ended = [], []
        for row, origin in enumerate(rows.origins):
            new = verdict.tokens[row][: verdict.accepted[row] + 1]
            count, done = self._cut(row, new, verdict)
            self.collector.add(origin, row, new[:count], outputs, done=done)
            kept.append(count)
            ended.append(done)
        if not prompt:
            self._report(draft, drafted, lengths, verdict, kept)
            self.context.add(output.features_RSF, kept)
        self.target.commit(rows, width, kept)
        rows.advance(kept)
        if self.met:
            ended = self._ended_together(ended)
        self.collector.stream()
        self._release(ended)

    def _cut(self, row: int, new: list[int], verdict: Verdict) -> tuple[int, bool]:
        """Exact stopping: tokens of a row that stay, and whether it ends with them."""
        rows, origin = self.rows, self.rows.origins[row]
        count, done = self.rule.cut(
            new,
            rows.lengths[row],
            lambda columns: rows.ids_RC[row : row + 1, :columns],
            lambda extra: self.collector.scores_of(
                origin, [verdict.scores.padded_RQV[row : row + 1, position] for position in range(extra)]
            ),
        )
        if not done or self.rule.eos_ids or len(self.collector.rows) == 1:
            return count, done
        self.met.setdefault(origin, rows.generated[row] + count)
        count = min(len(new), self.rule.max_length - rows.lengths[row])
        return count, rows.lengths[row] + count >= self.rule.max_length

    def _ended_together(self, ended: list[bool]) -> list[bool]:
        """Without end tokens rows of a batch end with the last one to meet a criterion."""
        if len(self.met) < len(self.collector.rows):
            return ended
        last = max(self.met.values())
        self.rule.max_length = min(self.rule.max_length, self.rows.prompt_width + last)
        self.collector.truncate(last)
        return [generated >= last for generated in self.rows.generated]

    def _report(
        self, draft: Draft | None, drafted: list[int], lengths: list[int], verdict: Verdict, kept: list[int]
    ) -> None:
        rows = self.rows
        self.lengths.observe(rows, drafted, lengths, verdict.accepted)
        for row, origin in enumerate(rows.origins):
            last = self.rule.max_length - rows.lengths[row] == 1
            cut = kept[row] <= verdict.accepted[row] or (last and not drafted[row])
            self.stats.record(origin, drafted[row], lengths[row], verdict.accepted[row], cut=cut)
        if self.listener is not None and draft is not None:
            records = _round_records(rows, draft, lengths, verdict, do_sample=self.request.do_sample)
            for record, count in zip(records, drafted, strict=True):
                if count:
                    self.listener(record)

    def _release(self, ended: list[bool]) -> None:
        """Ended rows leave the batch and cost nothing from here on."""
        if not any(ended):
            return
        for origin, done in zip(self.rows.origins, ended, strict=True):
            if done:
                self.lengths.forget(origin)
        stay = _closed_up(ended)
        if stay:
            self.target.select(stay)
            self.context.select(stay)
        else:
            self.target.finish(self.rows, self.context)
        self.rows.select(stay)


def _closed_up(ended: list[bool]) -> list[int]:
    """Rows that go on: the last of them in the gaps of those that ended, the others in their places."""
    count = ended.count(False)
    last = iter(row for row in range(count, len(ended)) if not ended[row])
    return [next(last) if ended[row] else row for row in range(count)]


def _round_records(
    rows: TokenRows, draft: Draft, lengths: list[int], verdict: Verdict, *, do_sample: bool
) -> list[RoundRecord]:
    """What calibration learns from a round, one record per row."""
    tokens = draft.tokens_RK.tolist()
    margins = draft.margins_RK.clamp(max=LARGEST_MARGIN).tolist()
    confidence = None if draft.confidence_RK is None else draft.confidence_RK.tolist()
    overlaps = overlap(verdict.scores.padded_RQV, draft, max(lengths)) if do_sample and max(lengths) else None
    return [
        RoundRecord(
            row=origin,
            position=rows.generated[row],
            tokens=tokens[row],
            verified=lengths[row],
            accepted=verdict.accepted[row],
            confidence_logits=None if confidence is None else confidence[row],
            margins=margins[row],
            acceptance=None if overlaps is None else overlaps[row][: lengths[row]],
        )
        for row, origin in enumerate(rows.origins)
    ]
