"""Attention of rows end to end against a dense softmax, and the choice of what it runs on."""

import inspect

import pytest
import torch

from dspark_hf import ops, ragged_attention
from dspark_hf.ragged_attention import attend_ragged, causal_window, fused_attention, is_fused


def random_rows(query_heads: int = 4, key_heads: int = 2):
    """Three rows of 1, 4 and 2 queries over 9, 4 and 7 keys, in slots of 12; what lies behind a row's keys is NaN."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, slot = [1, 4, 2], [9, 4, 7], 12
    query = torch.randn(sum(queries), query_heads, 8, generator=generator)
    key, value = torch.randn(2, 3, slot, key_heads, 8, generator=generator)
    for row, used in enumerate(keys):
        key[row, used:] = value[row, used:] = float("nan")
    cu_seq_q = torch.tensor([0, 1, 5, 7], dtype=torch.int32)
    cu_seq_k = torch.arange(4, dtype=torch.int32) * slot
    return query, key, value, cu_seq_q, cu_seq_k, torch.tensor(keys, dtype=torch.int32)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_every_query_sees_its_own_rows_keys_up_to_itself(key_heads, window):
    query, key, value, cu_seq_q, cu_seq_k, used = random_rows(key_heads=key_heads)
    output = attend_ragged(
        query,
        key.flatten(0, 1),
        value.flatten(0, 1),
        cu_seq_q,
        cu_seq_k,
        4,
        9,
        scale=0.3,
        window_size=causal_window(window),
        enable_gqa=key_heads != 4,
        seqused_k=used,
    )
    for row in range(3):
        queries = int(cu_seq_q[row + 1] - cu_seq_q[row])
        for index in range(queries):
            last = int(used[row]) - queries + index
            first = 0 if window is None else max(0, last - window + 1)
            for head in range(4):
                shared = head // (4 // key_heads)
                keys, values = key[row, first : last + 1, shared], value[row, first : last + 1, shared]
                chances = (0.3 * keys @ query[int(cu_seq_q[row]) + index, head]).softmax(0)
                torch.testing.assert_close(output[int(cu_seq_q[row]) + index, head], chances @ values)


def test_without_used_keys_all_of_a_slot_count():
    query, key, value = torch.randn(3, 2, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    starts = torch.tensor([0, 3]), torch.tensor([0, 5])
    output = attend_ragged(query, key, value, *starts, 3, 5)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(states.transpose(0, 1)[None] for states in (query, key, value))
    )
    torch.testing.assert_close(output, expected[0].transpose(0, 1))


def test_the_reference_takes_what_varlen_attention_takes():
    theirs = inspect.signature(fused_attention()).parameters
    for name, parameter in inspect.signature(attend_ragged).parameters.items():
        assert theirs[name].kind == parameter.kind
        assert theirs[name].default == parameter.default


def test_a_torch_without_varlen_attention_or_with_an_older_one_has_no_fused_attention(monkeypatch):
    fused_attention.cache_clear()
    try:
        monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", lambda query, key, value, cu_seq_q: query)
        assert fused_attention() is None
        fused_attention.cache_clear()
        monkeypatch.setattr(ragged_attention.importlib.util, "find_spec", lambda name: None)
        assert fused_attention() is None
    finally:
        fused_attention.cache_clear()


@pytest.mark.parametrize(
    ("device", "dtype", "sizes", "fused"),
    [
        ("cuda", torch.bfloat16, {128}, True),
        ("cuda", torch.float16, {256}, True),
        ("cuda", torch.float32, {128}, False),
        ("cuda", torch.bfloat16, {512}, False),
        ("cuda", torch.bfloat16, {192, 128}, False),
        ("cuda", torch.bfloat16, {60}, False),
        ("cpu", torch.bfloat16, {128}, False),
    ],
)
def test_fused_attention_needs_cuda_half_precision_and_one_head_size(device, dtype, sizes, fused):
    assert is_fused(torch.device(device), dtype, sizes) == fused


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 3])
def test_fused_attention_equals_the_reference_on_a_gpu(window):
    query, key, value, cu_seq_q, cu_seq_k, used = (tensor.cuda() for tensor in random_rows())
    states = [tensor.nan_to_num(0.0).bfloat16() for tensor in (query, key.flatten(0, 1), value.flatten(0, 1))]
    options = {"window_size": causal_window(window), "enable_gqa": True, "seqused_k": used}
    expected = attend_ragged(*states, cu_seq_q, cu_seq_k, 4, 9, **options)
    torch.testing.assert_close(ops.attend_ragged(*states, cu_seq_q, cu_seq_k, 4, 9, **options), expected)
