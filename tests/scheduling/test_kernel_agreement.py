"""A kernel on the device and the policies on the host choose the same lengths: ties, slots of no chance and plain rows too."""

import random

import pytest
import torch

from dspark_hf import ops
from dspark_hf.scheduling import CostCurve, DecodingPolicy, History, schedule
from dspark_hf.scheduling.device import schedule_on_device


def random_survival(rng: random.Random, rows: int, slots: int) -> torch.Tensor:
    """Products of confidences, half of them with many ties and zeros."""
    levels = [0.0, 0.25, 0.5, 0.5, 0.75, 1.0]
    pick = (lambda: rng.choice(levels)) if rng.random() < 0.5 else rng.random
    return torch.tensor([[pick() for _ in range(slots)] for _ in range(rows)]).cumprod(1)


def random_curve(rng: random.Random, size: int) -> CostCurve:
    seconds = {
        "jagged": lambda: [rng.uniform(0.5, 3.0) for _ in range(size)],
        "stairs": lambda: [1.0 + (tokens // 4) for tokens in range(size)],
        "falling": lambda: [2.0 - tokens / size for tokens in range(size)],
        "flat": lambda: [2.0] * size,
    }[rng.choice(["jagged", "stairs", "falling", "flat"])]()
    return CostCurve(tokens=list(range(1, size + 1)), seconds=seconds, draft_seconds=rng.choice([0.0, 0.4]))


@pytest.mark.parametrize("layout", ["ragged", "padded"])
@pytest.mark.parametrize("policy", ["early_stop", "lookahead", "lagged_topk"])
def test_the_kernel_chooses_the_lengths_of_the_policy_on_two_thousand_instances(policy, layout):
    rng = random.Random(0)
    torch.manual_seed(0)
    some_of_no_chance = 0
    for _ in range(2000):
        rows, slots, plain = rng.randint(1, 6), rng.randint(1, 7), rng.choice([0, 0, 0, 1, 3])
        survival, curve = random_survival(rng, rows, slots), random_curve(rng, (rows + plain) * (1 + slots))
        history = History()
        if policy == "lookahead":
            shape = (rows, slots) if rng.random() < 0.5 else (slots,)
            history.acceptance = torch.rand(shape, dtype=torch.float64).round(decimals=1)
        if policy == "lagged_topk" and rng.random() < 0.8:
            history.lagged_survival = random_survival(rng, rows, slots)
            history.new_rows = torch.tensor([rng.random() < 0.2 for _ in range(rows)])
        options = {"layout": layout, "plain_rows": plain}
        expected = schedule(survival, curve, policy, history, **options)
        chosen = schedule_on_device(ops.schedule_prefix, survival, curve, policy, history, **options)
        assert torch.equal(chosen, expected), (survival, curve, history, options)
        verified = torch.arange(slots) < expected[:, None]
        some_of_no_chance += bool((verified & (survival == 0)).any())
    assert some_of_no_chance > 20


def test_a_slot_of_no_chance_is_verified_where_it_makes_the_forward_cheaper():
    curve = CostCurve(tokens=[1, 2, 3, 4], seconds=[9.0, 4.0, 3.0, 5.0])
    survival = torch.zeros(1, 3)
    assert schedule(survival, curve, "early_stop").tolist() == [2]
    assert schedule_on_device(ops.schedule_prefix, survival, curve, "early_stop").tolist() == [2]


def test_plain_rows_bring_a_token_and_no_candidates():
    cheap_at_four = CostCurve(tokens=[1, 2, 3, 4, 5, 6], seconds=[6.0, 5.0, 4.0, 3.0, 9.0, 9.0])
    survival = torch.zeros(1, 2)
    for policy in ("early_stop", "lookahead"):
        assert schedule(survival, cheap_at_four, policy, plain_rows=1).tolist() == [2]
        assert schedule_on_device(ops.schedule_prefix, survival, cheap_at_four, policy, plain_rows=1).tolist() == [2]


@pytest.mark.parametrize("name", ["early_stop", "lookahead", "lagged_topk", "auto"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_decoding_policy_hands_its_decisions_to_the_kernel_and_decides_alike(name, rows):
    curve = CostCurve(tokens=[1, 4, 24], seconds=[1.0, 1.1, 2.5], draft_seconds=0.1)
    calls = []

    def kernel(*arguments, **options):
        calls.append(options["policy"])
        return ops.schedule_prefix(*arguments, **options)

    settings = {"num_slots": 5, "sampling": True}
    on_host = DecodingPolicy({"name": name}, curve, **settings)
    on_device = DecodingPolicy({"name": name}, curve, **settings, kernel=kernel)
    ids = list(range(rows))
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        logits = 3 * torch.randn(rows, 5, generator=generator)
        lengths = on_host(logits, ids).tolist()
        assert on_device(logits, ids).tolist() == lengths
        for policy in (on_host, on_device):
            policy.observe(ids, [5] * rows, lengths, [length // 2 for length in lengths])
    assert calls == [{"lagged_topk": "top_k", "auto": "lookahead"}.get(name, name)] * 12


def test_policies_that_no_kernel_knows_stay_with_the_host():
    curve = CostCurve(tokens=[1, 24], seconds=[1.0, 2.0])
    for policy in ({"name": "threshold"}, {"name": "full"}, {"name": "early_stop", "tiers": [2, 4]}):
        assert DecodingPolicy(policy, curve, num_slots=4, sampling=True, kernel=ops.schedule_prefix).kernel is None


@pytest.mark.parametrize("layout", ["ragged", "padded"])
@pytest.mark.parametrize("name", ["early_stop", "lookahead", "lagged_topk"])
def test_a_decision_reads_nothing_back_from_the_device(name, layout):
    """Tensors of the meta device have no values, so whatever waited for one would fail."""
    curve = CostCurve(tokens=[1, 4, 24], seconds=[1.0, 1.1, 2.5], draft_seconds=0.1)
    policy = DecodingPolicy(
        {"name": name}, curve, num_slots=5, sampling=True, layout=layout, kernel=ops.schedule_prefix
    )
    for _ in range(3):
        lengths = policy(torch.empty(4, 5, device="meta"), list(range(4)), plain_rows=1)
        assert lengths.device.type == "meta"
        assert lengths.shape == (4,)
