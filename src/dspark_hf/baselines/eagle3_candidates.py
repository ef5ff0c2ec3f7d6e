"""Drafting with Eagle3 inside the decode loop: token after token, each from its processed scores.

Knows nothing of the target, of verification or of stopping. Compared with a block drafter it also reads the committed
tokens, because an entry of its context pairs features with the token that follows them.
"""

# R rows, K slots, S new context tokens, C context columns, U draft vocabulary, V target vocabulary

from __future__ import annotations

import torch
from transformers.generation import logits_process as lp

from dspark_hf.generation.candidates import Draft, DSparkCandidateGenerator
from dspark_hf.generation.rows import TokenRows

from .eagle3 import Chain, Eagle3Drafter


class Eagle3CandidateGenerator(DSparkCandidateGenerator):
    """See [`DSparkCandidateGenerator`]; the drafter is an [`Eagle3Drafter`]."""

    drafter: Eagle3Drafter

    def propose(self, rows: TokenRows, slots: int) -> Draft:
        """Drafts `slots` tokens for every row."""
        drafter = self.drafter
        chain = self._start(rows)
        plain = not self.plan.processors or [type(each) for each in self.plan.processors] == [
            lp.TemperatureLogitsWarper
        ]
        temperature = self.temperature if plain else float(self.do_sample)
        draft_to_target = drafter.draft_to_target() if plain else None
        count = len(rows)
        limits, ended = [slots] * count, [False] * count
        tokens: list[torch.Tensor] = []
        scores: list[tuple[torch.Tensor, torch.Tensor]] = []
        for slot in range(slots):
            if slot:
                drafter.extend_chain(chain, tokens[-1])
            logits_RU = drafter.next_logits(chain.hidden_BD)
            if not plain:
                logits_RU = self._processed(logits_RU, rows, slot, limits)
            chosen_R = self._choose(logits_RU, temperature)
            token_R = chosen_R if draft_to_target is None else draft_to_target[chosen_R]
            tokens.append(token_R)
            scores.append((logits_RU, chosen_R))
            if not plain and not self.plan.context_free:
                rows.write(token_R[:, None], slot)
                for row, token in enumerate(token_R.tolist()):
                    if limits[row] > slot and token in self.eos_ids:
                        limits[row], ended[row] = slot + 1, True
                if max(limits) <= slot + 1:
                    break
        logits_RKU = torch.stack([each for each, _ in scores], dim=1)
        chosen_RK = torch.stack([each for _, each in scores], dim=1)
        scaled_RKU = logits_RKU / (temperature or 1.0)
        normalizer_RK = scaled_RKU.logsumexp(dim=-1)
        log_q_RK = scaled_RKU.gather(-1, chosen_RK[..., None])[..., 0] - normalizer_RK
        limits = [min(limit, len(tokens)) for limit in limits]
        return Draft(
            torch.stack(tokens, dim=1),
            logits_RKU,
            log_q_RK,
            normalizer_RK,
            temperature,
            draft_to_target,
            None,
            limits,
            ended,
        )

    def _start(self, rows: TokenRows) -> Chain:
        """Committed tokens and features since the last round join the cache."""
        known = list(self.context.known)
        inputs = self.context.prepare(1)
        new = inputs.features_RSF.shape[1]
        device = self.drafter.fc.weight.device
        # the anchor is the token after the last context position; padding shifts columns against positions
        shifts = [length - 1 - end for length, end in zip(rows.lengths, self.context.known, strict=True)]
        columns_RS = torch.tensor([a + b + 1 for a, b in zip(known, shifts, strict=True)])[:, None] + torch.arange(new)
        ids_RC = rows.ids_RC
        next_ids_RS = ids_RC.gather(1, columns_RS.clamp(max=ids_RC.shape[1] - 1).to(ids_RC.device)).to(device)
        last_R = torch.tensor([end - start - 1 for end, start in zip(self.context.known, known, strict=True)])
        positions_RS = inputs.position_ids_RT[:, :new].to(device)
        visible = None if inputs.mask is None else inputs.mask[..., :-1].to(device)
        chain = self.drafter.start_chain(
            next_ids_RS, inputs.features_RSF.to(device), positions_RS, last_R.to(device), self.context.cache, visible
        )
        self.context.settle()
        return chain

    def _processed(self, logits_RU: torch.Tensor, rows: TokenRows, slot: int, limits: list[int]) -> torch.Tensor:
        raw_RV = self.drafter.expand_logits(logits_RU)
        open_rows = [int(limit > slot) for limit in limits]
        prefixes = [length + slot for length in rows.lengths]
        processed_RV = self.plan.process(raw_RV[:, None], rows.ids_RC, prefixes, open_rows, rows.origins)[:, 0]
        possible_R1 = processed_RV.amax(dim=-1, keepdim=True) > float("-inf")
        return torch.where(possible_R1, processed_RV, raw_RV)

    def _choose(self, logits_RU: torch.Tensor, temperature: float) -> torch.Tensor:
        if temperature == 0:
            return logits_RU.argmax(dim=-1)
        return torch.multinomial((logits_RU / temperature).softmax(dim=-1), 1)[:, 0]
