"""The Triton verification kernels against the torch reference, decision by decision, and both against the target."""

# R rows, K slots, M target positions, V target vocabulary, U draft vocabulary, r rank

import numpy
import pytest
import torch
from dspark_verify import ragged, reference
from dspark_verify.ragged_kernels import row_stats_kernel
from dspark_verify.sampling import STREAM_ACCEPT, keyed_uniforms


RANK = 24


def make_case(
    rows,
    slots,
    vocabulary,
    q,
    kind,
    *,
    dtype=torch.float32,
    pruned=False,
    keyed=True,
    draft_temperature=None,
    noise=0.7,
):
    """`(target_logits, draft_tokens, cu_seqlens, options, lengths)`: drafts from q, target near q, ragged rows.

    Row 0 verifies all its slots, row 1 none; the last three target positions are padding and column 5 is masked.
    """
    width = vocabulary - 30 if pruned else vocabulary
    columns = torch.randperm(vocabulary)[:width].sort().values if pruned else torch.arange(vocabulary)
    base = (torch.randn(rows, slots, width) * 1.5).to(dtype)
    latents = torch.randn(rows, slots, RANK).to(dtype)
    w2 = (torch.randn(width, RANK) * 0.2).to(dtype)
    full = base.float() + latents.float() @ w2.float().T if q == "recomputed" else base.float()
    temperature = {"greedy": 0.0, "sampled": 0.8, "mixed": torch.tensor([0.0, 1.0, 0.7, 1.3]).repeat(rows)[:rows]}[
        kind
    ]
    draft_t = temperature if draft_temperature is None else draft_temperature
    scale = torch.as_tensor(draft_t, dtype=torch.float32).expand(rows)
    scaled = full / torch.where(scale == 0, 1.0, scale)[:, None, None]
    sampled = torch.multinomial(scaled.softmax(-1).view(-1, width), 1).view(rows, slots)
    chosen = torch.where((scale == 0)[:, None], full.argmax(-1), sampled)
    lengths = torch.randint(0, slots + 1, (rows,))
    lengths[0] = slots
    if rows > 1:
        lengths[1] = 0
    target = torch.full((rows, slots + 1, vocabulary), -3.0)
    target[:, :slots, columns] = full
    target += torch.randn_like(target) * noise
    target[:, :, 5] = float("-inf")
    parts = [target[row, : length + 1] for row, length in enumerate(lengths.tolist())]
    flat = torch.cat([*parts, torch.randn(3, vocabulary)]).to(dtype)
    cu_seqlens = torch.cat([torch.zeros(1), (lengths + 1).cumsum(0)]).int()
    options = {"temperature": temperature, "draft_temperature": draft_temperature}
    options["draft_to_target"] = columns if pruned else None
    if q != "one_hot":
        normalizer = scaled.logsumexp(-1)
        log_q = scaled.gather(-1, chosen[..., None])[..., 0] - normalizer
        options.update(q_logits=base, q_log_normalizer=normalizer, log_q=log_q)
    if q == "recomputed":
        options.update(q_latents=latents, q_w2=w2)
    if keyed:
        options.update(seeds=torch.randint(2**62, (rows,)), positions=torch.randint(1000, (rows,)))
    else:
        options["accept_uniforms"] = torch.rand(rows, slots, dtype=torch.float64)
        options["resample_uniforms"] = torch.rand(rows, 2, dtype=torch.float64)
    return flat, columns[chosen], cu_seqlens, options, lengths


def on(device, *parts):
    def move(part):
        if isinstance(part, dict):
            return {name: move(value) for name, value in part.items()}
        return part.to(device) if torch.is_tensor(part) else part

    return [move(part) for part in parts]


def both(device, flat, tokens, cu_seqlens, options):
    expected = reference.verify_ragged(flat, tokens, cu_seqlens, **options)
    flat, tokens, cu_seqlens, options = on(device, flat, tokens, cu_seqlens, options)
    result = ragged.verify_ragged(flat, tokens, cu_seqlens, **options)
    return expected, type(result)(*(part.cpu() for part in result))


CASES = [
    (1, 7, 61, "one_hot", "greedy", {}),
    (20, 5, 300, "one_hot", "greedy", {"dtype": torch.bfloat16}),
    (3, 5, 1000, "logits", "sampled", {}),
    (20, 3, 61, "logits", "mixed", {"pruned": True}),
    (3, 16, 61, "logits", "sampled", {"keyed": False}),
    (1, 1, 61, "logits", "sampled", {"dtype": torch.float16}),
    (3, 5, 1300, "recomputed", "mixed", {}),
    (3, 7, 300, "recomputed", "sampled", {"pruned": True, "dtype": torch.bfloat16}),
    (20, 3, 61, "one_hot", "sampled", {"draft_temperature": 0.0}),
    (3, 5, 300, "logits", "sampled", {"draft_temperature": 1.2, "dtype": torch.bfloat16, "keyed": False}),
]


@pytest.mark.parametrize(("rows", "slots", "vocabulary", "q", "kind", "extra"), CASES)
def test_triton_decides_like_the_reference(device, rows, slots, vocabulary, q, kind, extra):
    *case, lengths = make_case(rows, slots, vocabulary, q, kind, **extra)
    expected, result = both(device, *case)
    assert torch.equal(result.accepted, expected.accepted)
    assert torch.equal(result.tokens, expected.tokens)
    assert torch.equal(result.status, expected.status)
    assert (result.accepted <= lengths).all()


def test_a_vocabulary_of_151936_is_verified_like_the_reference(device):
    *case, _ = make_case(1, 1, 151_936, "logits", "sampled")
    expected, result = both(device, *case)
    assert torch.equal(result.tokens, expected.tokens)


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_accepted_lengths_equal_a_replay_of_the_same_uniforms(device, implementation):
    flat, tokens, cu_seqlens, options, lengths = make_case(20, 4, 61, "logits", "sampled")
    arguments = on(device, flat, tokens, cu_seqlens, options)
    accepted = implementation.verify_ragged(*arguments[:3], **arguments[3]).accepted
    for row, length in enumerate(lengths.tolist()):
        count = 0
        while count < length:
            position = options["positions"][row] + count
            uniform = keyed_uniforms(options["seeds"][row], position, STREAM_ACCEPT)[0]
            p = (flat[cu_seqlens[row] + count] / 0.8).double().softmax(-1)[tokens[row, count]]
            if uniform * options["log_q"][row, count].double().exp() >= p:
                break
            count += 1
        assert accepted[row] == count


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_three_descriptions_of_q_emit_the_same_tokens(device, implementation):
    flat, tokens, cu_seqlens, options, _ = make_case(12, 3, 61, "recomputed", "sampled")
    stored = {name: part for name, part in options.items() if name not in ("q_latents", "q_w2")}
    stored["q_logits"] = options["q_logits"] + options["q_latents"] @ options["q_w2"].T
    results = [
        implementation.verify_ragged(*on(device, flat, tokens, cu_seqlens), **on(device, chosen)[0])
        for chosen in (options, stored)
    ]
    assert torch.equal(results[0].tokens, results[1].tokens)


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_a_draft_of_the_target_itself_is_accepted_whole(device, implementation):
    *case, lengths = make_case(8, 3, 61, "logits", "sampled", noise=0.0)
    flat, tokens, cu_seqlens, options = case
    options["q_logits"][:, :, 5] = float("-inf")
    scaled = options["q_logits"] / 0.8
    options["q_log_normalizer"] = scaled.logsumexp(-1)
    tokens = torch.where(tokens == 5, 6, tokens)
    options["log_q"] = scaled.gather(-1, tokens[..., None])[..., 0] - options["q_log_normalizer"] - 1e-5
    result = implementation.verify_ragged(*on(device, flat, tokens, cu_seqlens), **on(device, options)[0])
    assert torch.equal(result.accepted.cpu(), lengths)


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_an_impossible_draft_is_rejected_at_once(device, implementation):
    flat, tokens, cu_seqlens, options, _ = make_case(8, 3, 61, "logits", "sampled")
    result = implementation.verify_ragged(
        *on(device, flat, torch.full_like(tokens, 5), cu_seqlens), **on(device, options)[0]
    )
    assert result.accepted.eq(0).all()
    assert (result.tokens[:, 0] != 5).all()
    assert (result.tokens[:, 1:] == -1).all()


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_a_residual_that_vanishes_falls_back_to_the_target(device, implementation):
    flat, tokens, cu_seqlens, options, lengths = make_case(16, 1, 61, "logits", "sampled", noise=0.0)
    options["q_logits"][:, :, 5] = float("-inf")
    options["q_log_normalizer"] = (options["q_logits"] / 0.8).logsumexp(-1)
    options["log_q"] = torch.full_like(options["log_q"], 30.0)  # a q above the truth: rejected, and p - q is 0
    options["q_log_normalizer"] -= 1e-3
    result = implementation.verify_ragged(*on(device, flat, tokens, cu_seqlens), **on(device, options)[0])
    rejected = lengths.to(device) > 0
    assert torch.equal(result.status, rejected.int() * reference.STATUS_RESIDUAL_VANISHED)
    assert ((result.tokens[:, 0] >= 0) & (result.tokens[:, 0] != 5)).all()


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_greedy_ties_go_to_the_lowest_token_and_nan_counts_as_largest(device, implementation):
    logits = torch.zeros(4, 3000)
    logits[0, [1500, 2500]] = 1.0
    logits[1, 2900] = float("nan")
    logits[2, 40] = float("inf")
    logits[2, 2000] = float("nan")
    cu_seqlens = torch.arange(5, dtype=torch.int32)
    tokens = torch.zeros(4, 1, dtype=torch.int64)
    result = implementation.verify_ragged(*on(device, logits, tokens, cu_seqlens))
    assert result.tokens[:, 0].tolist() == logits.argmax(-1).tolist() == [1500, 2900, 2000, 0]


@pytest.mark.parametrize("implementation", [reference, ragged])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_sampling_reports_logits_that_are_no_distribution(device, implementation, value):
    logits = torch.randn(2, 1500)
    logits[1, 1200 if value > 0 or value != value else slice(None)] = value
    cu_seqlens = torch.arange(3, dtype=torch.int32)
    keys = {"seeds": torch.arange(2), "positions": torch.arange(2)}
    tokens = torch.zeros(2, 0, dtype=torch.int64)
    result = implementation.verify_ragged(
        *on(device, logits, tokens, cu_seqlens), temperature=1.0, **on(device, keys)[0]
    )
    assert result.status.tolist() == [reference.STATUS_OK, reference.STATUS_NOT_A_DISTRIBUTION]
    assert result.tokens[1, 0] == -1


@pytest.mark.parametrize("implementation", [reference, ragged])
def test_padding_positions_may_hold_anything(device, implementation):
    flat, tokens, cu_seqlens, options, _ = make_case(3, 3, 61, "logits", "mixed")
    expected = implementation.verify_ragged(*on(device, flat, tokens, cu_seqlens), **on(device, options)[0])
    flat[-3:] = float("nan")
    again = implementation.verify_ragged(*on(device, flat, tokens, cu_seqlens), **on(device, options)[0])
    assert torch.equal(expected.tokens, again.tokens)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 7, 16])
def test_sizes_that_are_no_power_of_two_and_empty_batches_work(device, slots):
    for vocabulary, rows in ((5, 1), (60, 3), (151, 0)):
        flat, lengths = torch.randn(rows * (slots + 1), vocabulary), torch.full((rows,), slots)
        lengths[1:2] = 0  # one row drafts nothing; its positions are read no further
        cu_seqlens = torch.cat([torch.zeros(1), (lengths + 1).cumsum(0)]).int()
        expected, result = both(device, flat, torch.randint(vocabulary, (rows, slots)), cu_seqlens, {})
        assert torch.equal(result.tokens, expected.tokens)


def test_a_row_beyond_2_to_the_31_elements_is_read_from_its_own_place(tmp_path):
    """Position 20000 of a 151936 vocabulary, in a sparse file so that only one row takes memory."""
    positions, vocabulary = 20_001, 151_936
    sparse = numpy.memmap(tmp_path / "logits", dtype=numpy.float16, mode="w+", shape=(positions, vocabulary))
    sparse[-1, 77_777] = 3.0
    logits = torch.from_numpy(sparse)
    marker = torch.full((positions,), -1, dtype=torch.int32)
    marker[-1] = 0
    peaks, sums = torch.empty(2, positions, 1)
    bests = torch.empty(positions, 1, dtype=torch.int32)
    row_stats_kernel[(positions, 1)](
        logits, vocabulary, marker, torch.ones(1), peaks, sums, bests, vocabulary, 1, BLOCK=262_144
    )
    assert bests[-1].item() == 77_777
    assert peaks[-1].item() == 3.0


def sample_first_tokens(rows, *, draft_log_q_shift=0.0):
    """First committed tokens of many rows with one q and one p, and p."""
    vocabulary = 40
    q_logits, p_logits = torch.randn(vocabulary) * 1.5, torch.randn(2, vocabulary) * 1.5
    log_q = q_logits.log_softmax(-1)
    draft = torch.multinomial(log_q.exp(), rows, replacement=True)[:, None]
    result = reference.verify_ragged(
        p_logits.repeat(rows, 1),
        draft,
        torch.arange(rows + 1, dtype=torch.int32) * 2,
        temperature=1.0,
        log_q=log_q[draft] + draft_log_q_shift,
        q_logits=q_logits.expand(rows, 1, vocabulary),
        q_log_normalizer=q_logits.logsumexp(-1).expand(rows, 1),
        seeds=torch.arange(rows) * 104_729,
        positions=torch.full((rows,), 3),
    )
    return torch.bincount(result.tokens[:, 0], minlength=vocabulary), p_logits[0].softmax(-1) * rows


def test_committed_tokens_follow_the_target(chi_square_p):
    counts, expected = sample_first_tokens(60_000)
    assert chi_square_p(counts, expected) > 1e-4


def test_a_wrong_q_would_be_noticed(chi_square_p):
    counts, expected = sample_first_tokens(60_000, draft_log_q_shift=0.2)
    assert chi_square_p(counts, expected) < 1e-9


@pytest.mark.slow
def test_tokens_of_the_triton_kernels_follow_the_target(device, chi_square_p):
    rows = 500
    *case, lengths = make_case(1, 2, 70, "logits", "sampled", keyed=False)
    flat, tokens, cu_seqlens, options = case
    q = (options["q_logits"][0] / 0.8).softmax(-1)
    draft = torch.stack([torch.multinomial(q[slot], rows, replacement=True) for slot in range(2)], dim=1)
    many = {
        name: part.expand(rows, *part.shape[1:]).contiguous()
        for name, part in options.items()
        if torch.is_tensor(part)
    }
    many["log_q"] = q.log()[torch.arange(2), draft]
    many["accept_uniforms"] = torch.rand(rows, 2, dtype=torch.float64)
    many["resample_uniforms"] = torch.rand(rows, 2, dtype=torch.float64)
    ends = torch.arange(rows + 1, dtype=torch.int32) * 3
    arguments = on(device, flat[:3].repeat(rows, 1), draft, ends, many)
    result = ragged.verify_ragged(*arguments[:3], temperature=0.8, **arguments[3])
    counts = torch.bincount(result.tokens[:, 0].cpu(), minlength=70)
    assert chi_square_p(counts, (flat[0] / 0.8).softmax(-1) * rows) > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_q": None}, "come with `log_q`"),
        ({"q_w2": torch.zeros(61, RANK)}, "recomputing q"),
        ({"seeds": None}, "verifying a sampled draft needs"),
    ],
)
@pytest.mark.parametrize("implementation", [reference, ragged])
def test_an_incomplete_description_is_refused(implementation, change, message):
    flat, tokens, cu_seqlens, options, _ = make_case(2, 2, 61, "logits", "sampled")
    with pytest.raises(ValueError, match=message):
        implementation.verify_ragged(flat, tokens, cu_seqlens, **{**options, **change})
    with pytest.raises(ValueError, match="cu_seqlens"):
        implementation.verify_ragged(flat, tokens, cu_seqlens[:-1], **options)
