"""The Triton drafting kernels against the torch reference, and both against the exact distribution."""

# R rows, K slots, U draft vocabulary, V target vocabulary, D hidden, r rank

import pytest
import torch
from dspark_markov import draft, reference


HIDDEN = 12
# Stored logits of size ~10: fp32 differs by summation order, the others by one rounding of the storage type.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1.3e-1}


def make_case(rows, slots, width, rank, head, dtype=torch.float32, *, pruned=False, confidence=True, keyed=True):
    """`(base_logits, anchors, options)` of a random drafter."""
    vocabulary = width + 50 if pruned else width

    def normal(*shape, scale=1.0):
        return (torch.randn(*shape) * scale).to(dtype)

    options = {}
    if head != "none":
        options.update(w1=normal(vocabulary, rank), w2=normal(width, rank, scale=0.3), head_type=head)
    if head == "gated":
        options.update(projection_weight=normal(rank, HIDDEN + rank, scale=0.3), projection_bias=normal(rank))
    if head == "rnn":
        size = 3 * rank
        options.update(projection_weight=normal(size, 2 * rank + HIDDEN, scale=0.3), projection_bias=normal(size))
    options["hidden"] = normal(rows, slots, HIDDEN)
    if confidence:
        inputs = HIDDEN + (rank if head != "none" else 0)
        options.update(confidence_weight=normal(inputs, scale=0.2), confidence_bias=normal(1))
        options.update(confidence_temperatures=torch.linspace(1, 1.5, slots))
        options.update(confidence_biases=torch.linspace(-0.1, 0.1, slots))
    if pruned:
        options["draft_to_target"] = torch.randperm(vocabulary)[:width].sort().values
    if keyed:
        options.update(seeds=torch.randint(2**62, (rows,)), positions=torch.randint(1000, (rows,)))
    else:
        options["uniforms"] = torch.rand(rows, slots, 2, dtype=torch.float64)
    return normal(rows, slots, width, scale=2.0), torch.randint(vocabulary, (rows,)), options


def on(device, base, anchors, options):
    moved = {name: part.to(device) if torch.is_tensor(part) else part for name, part in options.items()}
    return base.clone().to(device), anchors.to(device), moved


def temperatures(kind, rows):
    return {"greedy": 0.0, "sampled": 0.8, "mixed": torch.tensor([0.0, 1.0, 0.7, 1.3]).repeat(rows)[:rows]}[kind]


CASES = [
    (1, 7, 61, 12, "vanilla", "greedy", {}),
    (3, 5, 300, 20, "vanilla", "mixed", {}),
    (20, 1, 130, 16, "vanilla", "sampled", {"pruned": True}),
    (1, 16, 61, 8, "vanilla", "sampled", {"keyed": False}),
    (3, 3, 1000, 16, "gated", "sampled", {"pruned": True}),
    (3, 5, 61, 20, "rnn", "mixed", {"keyed": False}),
    (1, 7, 61, 8, "rnn", "greedy", {"confidence": False}),
    (20, 2, 150, 16, "none", "mixed", {}),
    (3, 2, 61, 16, "none", "sampled", {"keyed": False, "pruned": True, "confidence": False}),
]


@pytest.mark.parametrize(("rows", "slots", "width", "rank", "head", "kind", "extra"), CASES)
def test_triton_drafts_the_tokens_and_numbers_of_the_reference(device, rows, slots, width, rank, head, kind, extra):
    case = make_case(rows, slots, width, rank, head, **extra)
    temperature = temperatures(kind, rows)
    base, anchors, options = on("cpu", *case)
    expected = reference.markov_draft(base, anchors, temperature=temperature, **options)
    stored, anchors, options = on(device, *case)
    temperature = temperature.to(device) if torch.is_tensor(temperature) else temperature
    result = draft.markov_draft(stored, anchors, temperature=temperature, **options)
    assert torch.equal(result.tokens.cpu(), expected.tokens)
    torch.testing.assert_close(stored.cpu(), base, atol=TOLERANCE[torch.float32], rtol=0)
    for name in ("log_q", "log_normalizer", "confidence_logits", "survival", "latents"):
        torch.testing.assert_close(
            getattr(result, name), getattr(expected, name), atol=1e-5, rtol=0, check_device=False, msg=name
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_half_precision_stores_what_it_samples_from(device, dtype, head):
    """Also the interpreter's bf16 product: wrong numbers there are around 1e10."""
    rows, slots = 4, 3
    original, anchors, options = on(device, *make_case(rows, slots, 200, 16, head, dtype))
    stored = original.clone()
    temperature = temperatures("mixed", rows).to(device)
    result = draft.markov_draft(stored, anchors, temperature=temperature, **options)

    previous = torch.cat([anchors[:, None], result.tokens[:, :-1]], dim=1)
    state = torch.zeros(rows, 16, device=device)
    for slot in range(slots):
        projected = weight = None
        if head != "vanilla":
            weight = options["projection_weight"].float()
            projected = reference.hidden_projection(
                head, options["hidden"][:, slot].float(), weight, options["projection_bias"].float(), 16
            )
        embedding = options["w1"][previous[:, slot]].float()
        latent, state = reference.head_step(head, embedding, projected, weight, state)
        exact = original[:, slot].float() + latent @ options["w2"].float().T
        torch.testing.assert_close(stored[:, slot].float(), exact, atol=TOLERANCE[dtype], rtol=0)
    scaled = stored.float() / torch.where(temperature == 0, 1.0, temperature)[:, None, None]
    log_q = scaled.log_softmax(-1).gather(-1, result.tokens[..., None])[..., 0]
    greedy = temperature == 0
    torch.testing.assert_close(result.log_q[~greedy], log_q[~greedy], atol=2e-5, rtol=0)
    assert torch.equal(result.tokens[greedy], stored[greedy].float().argmax(-1))


@pytest.mark.slow
def test_a_vocabulary_of_151936_is_drafted_like_the_reference(device):
    case = make_case(1, 1, 151_936, 16, "vanilla")
    base, anchors, options = on("cpu", *case)
    expected = reference.markov_draft(base, anchors, temperature=0.9, **options)
    stored, anchors, options = on(device, *case)
    result = draft.markov_draft(stored, anchors, temperature=0.9, **options)
    assert torch.equal(result.tokens.cpu(), expected.tokens)
    torch.testing.assert_close(result.log_q.cpu(), expected.log_q, atol=2e-5, rtol=0)


def test_a_rank_of_256_like_the_published_drafters_is_accumulated_right(device):
    case = make_case(1, 2, 70, 256, "rnn")
    base, anchors, options = on("cpu", *case)
    expected = reference.markov_draft(base, anchors, **options)
    stored, anchors, options = on(device, *case)
    result = draft.markov_draft(stored, anchors, **options)
    assert torch.equal(result.tokens.cpu(), expected.tokens)
    torch.testing.assert_close(stored.cpu(), base, atol=1e-4, rtol=0)


def test_without_store_the_base_logits_stay_and_the_draft_is_the_same(device):
    base, anchors, options = on(device, *make_case(3, 3, 200, 20, "vanilla"))
    before = base.clone()
    kept = draft.markov_draft(base, anchors, temperature=0.8, store=False, **options)
    assert torch.equal(base, before)
    stored = draft.markov_draft(base, anchors, temperature=0.8, **options)
    assert torch.equal(kept.tokens, stored.tokens)
    torch.testing.assert_close(kept.log_q, stored.log_q, atol=1e-5, rtol=0)


@pytest.mark.parametrize("implementation", [reference, draft])
def test_ties_go_to_the_lowest_token(device, implementation):
    base = torch.zeros(2, 1, 300, device=device)
    base[0, 0, [70, 200]] = 1.0
    base[1, 0, [130, 131, 299]] = 1.0
    anchors = torch.zeros(2, dtype=torch.int64, device=device)
    assert implementation.markov_draft(base, anchors).tokens[:, 0].tolist() == [70, 130]


@pytest.mark.parametrize("implementation", [reference, draft])
def test_masked_columns_are_never_drafted(device, implementation):
    base = torch.zeros(8, 1, 300, device=device)
    base[:, :, 10:] = float("-inf")
    anchors = torch.zeros(8, dtype=torch.int64, device=device)
    seeds, positions = torch.arange(8, device=device), torch.arange(8, device=device)
    tokens = implementation.markov_draft(base, anchors, temperature=1.0, seeds=seeds, positions=positions).tokens
    assert tokens.max() < 10


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 7, 16])
def test_sizes_that_are_no_power_of_two_and_empty_batches_work(device, slots):
    for width, rows in ((5, 1), (60, 3), (151, 0)):
        case = make_case(rows, slots, width, 6, "vanilla")
        base, anchors, options = on("cpu", *case)
        expected = reference.markov_draft(base, anchors, **options)
        stored, anchors, options = on(device, *case)
        assert torch.equal(draft.markov_draft(stored, anchors, **options).tokens.cpu(), expected.tokens)


def test_rows_do_not_depend_on_their_batch():
    base, anchors, options = make_case(3, 2, 200, 16, "vanilla", confidence=False)
    options.pop("hidden")
    together = reference.markov_draft(base.clone(), anchors, temperature=1.0, **options).tokens
    seeds, positions = options.pop("seeds"), options.pop("positions")
    alone = reference.markov_draft(
        base[1:2].clone(), anchors[1:2], temperature=1.0, seeds=seeds[1:2], positions=positions[1:2], **options
    ).tokens
    assert torch.equal(together[1:2], alone)


def test_samples_follow_the_softmax_of_the_corrected_logits(chi_square_p):
    rows, width = 60_000, 300
    base, anchors, options = make_case(1, 1, width, 16, "vanilla", confidence=False)
    corrected = base.clone()
    reference.markov_draft(corrected, anchors, w1=options["w1"], w2=options["w2"])
    many = base.expand(rows, 1, width).clone()
    options.update(seeds=torch.arange(rows) * 7919, positions=torch.full((rows,), 11), hidden=None)
    tokens = reference.markov_draft(many, anchors.expand(rows), temperature=0.8, **options).tokens[:, 0]
    counts = torch.bincount(tokens, minlength=width)
    assert chi_square_p(counts, (corrected[0, 0] / 0.8).softmax(-1) * rows) > 1e-4
    # The control: another temperature's distribution must be refused by the same test.
    assert chi_square_p(counts, (corrected[0, 0] / 0.9).softmax(-1) * rows) < 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2": None}, "both `w1`"),
        ({"head_type": "gru"}, "head_type must be one of"),
        ({"head_type": "gated"}, "projection_weight"),
        ({"hidden": None}, "need `hidden`"),
        ({"seeds": None}, "sampling a draft needs"),
        ({"w1": None, "w2": None}, "needs the Markov embedding"),
    ],
)
@pytest.mark.parametrize("implementation", [reference, draft])
def test_head_tensors_that_do_not_fit_are_refused(implementation, change, message):
    base, anchors, options = make_case(2, 2, 61, 8, "vanilla")
    with pytest.raises(ValueError, match=message):
        implementation.markov_draft(base, anchors, temperature=1.0, **{**options, **change})
