"""The chunked loss, with torch and with Triton rows, against autograd of the plain definition in fp64."""

# N rows, D hidden, U draft vocabulary, V target vocabulary, r rank

import pytest
import torch
from dspark_linear_loss import chunked, reference, rows_torch, rows_triton


ROWS = {"torch": rows_torch.loss_rows, "triton": rows_triton.loss_rows}
# Values, then gradients relative to the largest: summation order in fp32, the storage of logits in half precision.
TOLERANCE = {torch.float32: (5e-6, 5e-6), torch.float16: (2e-2, 5e-3), torch.bfloat16: (6e-2, 3e-2)}


def make_case(count=9, hidden=24, vocabulary=301, width=None, rank=8, *, markov=True):
    """Operands in fp64, and per-row weights."""

    def normal(*shape, scale=1.0):
        return torch.randn(*shape, dtype=torch.float64) * scale

    width = width or vocabulary
    columns = torch.randperm(vocabulary)[:width].sort().values if width != vocabulary else None
    labels = torch.randint(vocabulary, (count,))
    labels[0] = -100
    operands = {
        "hidden": normal(count, hidden),
        "latent": normal(count, rank) if markov else None,
        "teacher": normal(count, hidden + 4),
        "lm_head": normal(width, hidden, scale=0.2),
        "w2": normal(width, rank, scale=0.2) if markov else None,
        "teacher_head": normal(vocabulary, hidden + 4, scale=0.2),
    }
    return operands, labels, columns, {"ce_weight": torch.rand(count), "l1_weight": torch.rand(count)}


def run(function, case, dtype, device, *, weighted, **options):
    """`(result, gradients of hidden, latent and w2)` of a weighted sum times 1.7."""
    operands, labels, columns, weights = case
    moved = {name: None if part is None else part.clone().to(device, dtype) for name, part in operands.items()}
    leaves = [moved[name].requires_grad_() for name in ("hidden", "latent", "w2") if moved[name] is not None]
    weights = {
        name: part.to(device, torch.float64 if dtype == torch.float64 else None) for name, part in weights.items()
    }
    columns = None if columns is None else columns.to(device)
    result = function(
        *moved.values(), labels.to(device), draft_to_target=columns, **(weights if weighted else {}), **options
    )
    loss = result.loss if weighted else (result.ce * weights["ce_weight"] + result.l1 * weights["l1_weight"]).sum()
    (loss * 1.7).backward()
    return result, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("width", [None, 130])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_values_and_gradients_equal_fp64_autograd(device, rows, weighted, width, softcap):
    case = make_case(width=width)
    caps = {"softcap": softcap, "teacher_softcap": softcap}
    expected, wanted = run(reference.linear_loss, case, torch.float64, "cpu", weighted=weighted, **caps)
    options = {**caps, "chunk": 4, "rows": ROWS[rows]}
    result, grads = run(chunked.linear_loss, case, torch.float32, device, weighted=weighted, **options)
    values, relative = TOLERANCE[torch.float32]
    for name in ("ce", "l1", "accept"):
        torch.testing.assert_close(getattr(result, name).double().cpu(), getattr(expected, name), atol=values, rtol=0)
    for grad, want in zip(grads, wanted, strict=True):
        assert (grad.double().cpu() - want).abs().max() < relative * want.abs().max()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_within_its_rounding(device, rows, dtype):
    case = make_case()
    expected, wanted = run(reference.linear_loss, case, torch.float64, "cpu", weighted=True)
    result, grads = run(chunked.linear_loss, case, dtype, device, weighted=True, rows=ROWS[rows])
    values, relative = TOLERANCE[dtype]
    for name in ("ce", "l1", "accept"):
        torch.testing.assert_close(getattr(result, name).double().cpu(), getattr(expected, name), atol=values, rtol=0)
    for grad, want in zip(grads, wanted, strict=True):
        assert (grad.double().cpu() - want).abs().max() < relative * want.abs().max()


@pytest.mark.parametrize("rows", ROWS)
def test_without_a_markov_head_the_loss_is_that_of_the_head_alone(device, rows):
    case = make_case(markov=False)
    expected, wanted = run(reference.linear_loss, case, torch.float64, "cpu", weighted=True)
    result, grads = run(chunked.linear_loss, case, torch.float32, device, weighted=True, rows=ROWS[rows])
    torch.testing.assert_close(result.l1.double().cpu(), expected.l1, atol=5e-6, rtol=0)
    torch.testing.assert_close(grads[0].double().cpu(), wanted[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", ROWS)
def test_ignored_labels_and_labels_outside_a_pruned_vocabulary_cost_nothing(device, rows):
    operands, labels, columns, weights = make_case(width=130)
    inside = torch.isin(labels, columns)
    result, _ = run(
        chunked.linear_loss,
        (operands, labels, columns, weights),
        torch.float32,
        device,
        weighted=True,
        rows=ROWS[rows],
    )
    assert torch.equal(result.ce.cpu() != 0, inside)


@pytest.mark.parametrize("rows", ROWS)
def test_target_mass_outside_the_draft_vocabulary_counts_in_full(device, rows):
    logits_p = torch.zeros(1, 4, device=device)
    logits_q = torch.zeros(1, 2, device=device)
    mapped = torch.tensor([1, 3], device=device)
    ones = torch.ones(1, device=device)
    label = torch.zeros(1, dtype=torch.int64, device=device)
    _, l1 = ROWS[rows](logits_q, logits_p, label, mapped, ones, ones, gradient=False)
    assert l1.item() == pytest.approx(1.0)  # |1/2 - 1/4| twice, and 1/2 outside


@pytest.mark.parametrize("rows", ROWS)
def test_masked_target_columns_and_an_equal_draft_give_no_gradient(device, rows):
    target = torch.randn(3, 130, device=device)
    target[:, 5] = float("-inf")
    draft = target.clone()
    weights = torch.ones(3, device=device)
    label = torch.full((3,), -100, dtype=torch.int64, device=device)
    _, l1 = ROWS[rows](draft, target.clone(), label, None, weights, weights, gradient=True)
    assert l1.abs().max() < 1e-6
    assert draft.abs().max() < 1e-6


@pytest.mark.parametrize("rows", ROWS)
def test_a_vocabulary_of_151936_is_summed_like_the_definition(device, rows):
    case = make_case(count=2, hidden=4, vocabulary=151_936, rank=4)
    expected, _ = run(reference.linear_loss, case, torch.float64, "cpu", weighted=True)
    result, _ = run(chunked.linear_loss, case, torch.float32, device, weighted=True, rows=ROWS[rows])
    torch.testing.assert_close(result.l1.double().cpu(), expected.l1, atol=2e-5, rtol=0)


def test_the_chunk_size_does_not_change_the_result():
    case = make_case(count=11)
    results = [
        run(chunked.linear_loss, case, torch.float32, "cpu", weighted=True, chunk=chunk) for chunk in (1, 4, 512)
    ]
    for _, grads in results[1:]:
        for grad, first in zip(grads, results[0][1], strict=True):
            torch.testing.assert_close(grad, first, atol=1e-6, rtol=1e-5)


def test_nothing_of_vocabulary_size_is_kept_for_the_backward_pass():
    operands, labels, columns, weights = make_case(count=32)
    kept = []
    leaves = {name: part.float().requires_grad_(name in ("hidden", "latent", "w2")) for name, part in operands.items()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        chunked.linear_loss(*leaves.values(), labels, **weights, chunk=8)
    assert max(tensor.numel() for tensor in kept) < 32 * 301


def test_frozen_heads_receive_no_gradient_and_frozen_inputs_cost_none():
    operands, labels, columns, weights = make_case()
    leaves = {name: part.float().requires_grad_(name != "w2") for name, part in operands.items()}
    chunked.linear_loss(*leaves.values(), labels, **weights).loss.backward()
    assert leaves["lm_head"].grad is None
    assert leaves["teacher_head"].grad is None
    assert leaves["teacher"].grad is None
    assert leaves["w2"].grad is None
    assert leaves["hidden"].grad is not None


def test_autocast_multiplies_in_bf16_and_returns_fp32_gradients():
    operands, labels, columns, weights = make_case()
    leaves = {name: part.float().requires_grad_(name in ("hidden", "latent", "w2")) for name, part in operands.items()}
    exact = chunked.linear_loss(*leaves.values(), labels, **weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = chunked.linear_loss(*leaves.values(), labels, **weights)
    result.loss.backward()
    assert leaves["hidden"].grad.dtype == torch.float32
    assert 0 < (result.ce - exact.ce).abs().max() < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2": None}, "both `latent`"),
        ({"teacher": torch.zeros(3, 28)}, "expected hidden"),
        ({"lm_head": torch.zeros(100, 24), "w2": torch.zeros(100, 8)}, "pass `draft_to_target`"),
    ],
)
def test_operands_that_do_not_fit_are_refused(change, message):
    operands, labels, _, _ = make_case()
    with pytest.raises(ValueError, match=message):
        chunked.linear_loss(*{**{k: v.float() for k, v in operands.items()}, **change}.values(), labels)
