"""The scheduler's kernels against the torch reference, and the reference against a literal loop of Algorithm 1."""

# R rows, K slots

import pytest
import torch
from dspark_schedule import prefix, reference


def curves(entries):
    steps = torch.arange(entries)
    return {
        "smooth": 1 + 0.02 * steps.double(),
        "stairs": 1 + 0.3 * (steps // 4).double(),
        "jagged": 1 + torch.rand(entries, dtype=torch.float64),
    }


def random_survival(rows, slots, kind):
    """Products of confidences; `ties` holds many equal ones, and zeros."""
    confidence = torch.rand(rows, slots) ** 0.4
    if kind == "ties":
        confidence = (confidence * 4).floor() / 4
    return confidence.cumprod(1)


def algorithm_1(survival, seconds):
    """Lengths by the paper's loop, one candidate at a time."""
    rows, slots = survival.shape
    candidates = sorted((-survival[r, k].item(), k, r) for r in range(rows) for k in range(slots))
    lengths, tau, size = [0] * rows, float(rows), rows
    for negative, _, row in candidates:
        if (tau - negative) / float(seconds[size + 1]) <= tau / float(seconds[size]):
            break
        tau, size = tau - negative, size + 1
        lengths[row] += 1
    return lengths


def test_the_reference_equals_a_literal_loop_of_algorithm_1():
    for trial in range(200):
        rows, slots = int(torch.randint(1, 12, ())), int(torch.randint(1, 9, ()))
        survival = random_survival(rows, slots, "ties" if trial % 2 else "random")
        for seconds in curves(rows * (slots + 1) + 1).values():
            assert reference.schedule_prefix(survival, seconds).lengths.tolist() == algorithm_1(survival, seconds)


POLICIES = ["early_stop", "lookahead", "lookahead per row", "top_k"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("rows", "slots"), [(1, 1), (1, 7), (3, 5), (20, 3), (3, 16)])
def test_triton_schedules_like_the_reference(device, rows, slots, policy):
    for kind in ("random", "ties"):
        for name, seconds in curves(rows * (slots + 1) + 1).items():
            survival = random_survival(rows, slots, kind)
            options = {"policy": policy.split()[0]}
            if policy.startswith("lookahead"):
                shape = (rows, slots) if policy.endswith("row") else (slots,)
                options.update(acceptance=torch.rand(shape), draft_seconds=0.2)
            if policy == "top_k":
                options["capacity"] = torch.randint(rows * slots + 3, (1,), dtype=torch.int32)
            if kind == "ties":
                options["limits"] = torch.randint(slots + 1, (rows,), dtype=torch.int32)
            expected = reference.schedule_prefix(survival, seconds, **options)
            moved = {key: part.to(device) if torch.is_tensor(part) else part for key, part in options.items()}
            result = prefix.schedule_prefix(survival.to(device), seconds.to(device), **moved)
            for part in ("lengths", "cu_seqlens", "row_marker", "admitted"):
                assert torch.equal(getattr(result, part).cpu(), getattr(expected, part)), (name, kind, part)
            torch.testing.assert_close(result.throughput.cpu(), expected.throughput)


@pytest.mark.parametrize("implementation", [reference, prefix])
@pytest.mark.parametrize("policy", ["early_stop", "lookahead"])
def test_a_slot_of_no_chance_is_admitted_where_the_forward_gets_cheaper(device, implementation, policy):
    survival = torch.zeros(2, 2, device=device)
    seconds = torch.tensor([0.0, 9.0, 5.0, 4.0, 3.0, 6.0, 7.0], dtype=torch.float64, device=device)
    options = {"acceptance": torch.zeros(2, device=device)} if policy == "lookahead" else {}
    result = implementation.schedule_prefix(survival, seconds, policy=policy, **options)
    assert result.lengths.tolist() == [1, 1]
    limits = torch.tensor([0, 2], dtype=torch.int32, device=device)
    limited = implementation.schedule_prefix(survival, seconds, policy=policy, limits=limits, **options)
    assert limited.lengths.tolist() == [0, 2]


@pytest.mark.parametrize("implementation", [reference, prefix])
def test_more_candidates_than_one_chunk_are_admitted(device, implementation):
    rows, slots = 160, 7
    survival = random_survival(rows, slots, "random").to(device)
    seconds = torch.ones(rows * (slots + 1) + 1, dtype=torch.float64, device=device)
    result = implementation.schedule_prefix(survival, seconds)
    assert result.lengths.eq(slots).all()
    assert result.cu_seqlens[-1] == rows * (slots + 1)


@pytest.mark.parametrize("implementation", [reference, prefix])
def test_the_row_marker_names_the_row_of_every_position(device, implementation):
    survival = torch.tensor([[0.9, 0.8], [0.1, 0.0], [0.95, 0.2]], device=device)
    capacity = torch.tensor([3], dtype=torch.int32, device=device)
    seconds = torch.ones(10, dtype=torch.float64, device=device)
    result = implementation.schedule_prefix(survival, seconds, policy="top_k", capacity=capacity)
    assert result.lengths.tolist() == [2, 0, 1]
    assert result.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert result.row_marker.tolist() == [0, 0, 0, 1, 2, 2, -1, -1, -1]


@pytest.mark.parametrize("implementation", [reference, prefix])
def test_certain_slots_are_admitted_in_order_and_ties_go_to_the_lower_row(device, implementation):
    survival = torch.ones(3, 4, device=device)
    capacity = torch.tensor([5], dtype=torch.int32, device=device)
    seconds = torch.ones(16, dtype=torch.float64, device=device)
    result = implementation.schedule_prefix(survival, seconds, policy="top_k", capacity=capacity)
    assert result.lengths.tolist() == [2, 2, 1]


def test_lookahead_sees_past_a_cliff_that_stops_early_stop():
    seconds = torch.tensor([0.0, 96, 191, 262, 162, 160, 158, 156, 155], dtype=torch.float64)
    survival = torch.full((1, 7), 0.9).cumprod(1)
    assert reference.schedule_prefix(survival, seconds).lengths.item() == 0
    ahead = reference.schedule_prefix(survival, seconds, policy="lookahead", acceptance=torch.full((7,), 0.9))
    assert ahead.lengths.item() == 7


@pytest.mark.parametrize("implementation", [reference, prefix])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"}, "policy must be one of"),
        ({"policy": "lookahead"}, "needs `acceptance`"),
        ({"policy": "top_k"}, "needs `capacity`"),
        ({"base_tokens": 4}, "tokens can be verified"),
    ],
)
def test_what_a_policy_lacks_is_named(implementation, options, message):
    with pytest.raises(ValueError, match=message):
        implementation.schedule_prefix(torch.ones(2, 3), torch.ones(9, dtype=torch.float64), **options)
