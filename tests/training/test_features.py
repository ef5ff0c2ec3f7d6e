"""Features: the target's own hidden states and, through its head, its own distribution."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.cache import FeatureCache
from dspark_hf.training.features import TargetFeatures, check_teacher_head, teacher_head_of, weights_fingerprint
from dspark_hf.training.rows import Row


ROWS = [
    Row(id="a", prompt_ids=[5, 6, 7], completion_ids=[8, 9, 10, 11]),
    Row(id="b", prompt_ids=[12], completion_ids=list(range(13, 40))),
    Row(id="c", prompt_ids=[3, 4, 5, 6, 7], completion_ids=[41, 42]),
]
FAMILIES = ["qwen3", "gemma3", "gemma4", "gemma3_wrapper", "llama"]


@pytest.fixture(params=FAMILIES)
def target(request):
    # norm weights far from 1 and, in Gemma, a soft-cap: both would hide a wrong choice of hidden state
    return tiny_target(request.param, bigram=False)


@pytest.mark.parametrize("stored", [False, True], ids=["online", "cached"])
def test_the_distribution_rebuilt_from_features_is_the_targets_own(target, stored, tmp_path):
    source = TargetFeatures(target, [-1, 0, 2])
    if stored:
        source = FeatureCache(tmp_path, source, ROWS, dtype="float32")
    head = teacher_head_of(target)
    for row, features in zip(ROWS, source.read(ROWS), strict=True):
        with torch.no_grad():
            logits = target(input_ids=torch.tensor([row.token_ids])).logits[0]
        first, last = len(row.prompt_ids), len(row.token_ids) - 1
        rebuilt = head.logits(features.teacher).softmax(-1)
        torch.testing.assert_close(rebuilt, logits[first:last].softmax(-1), atol=1e-5, rtol=0)


def test_the_context_is_the_output_of_the_named_layers_whatever_shares_the_batch(target):
    together = TargetFeatures(target, [-1, 0, 2]).read(ROWS)
    alone = TargetFeatures(target, [-1, 0, 2], max_tokens=1).read(ROWS)
    for row, one, two in zip(ROWS, together, alone, strict=True):
        with torch.no_grad():
            ids = torch.tensor([row.token_ids[:-1]])
            states = target.get_decoder()(input_ids=ids, output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer + 1][0] for layer in (-1, 0, 2)], dim=-1)
        torch.testing.assert_close(one.context, expected, atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(two.context, expected, atol=2e-4, rtol=1e-5)


def test_the_head_check_passes_for_a_plain_head_and_refuses_another(target):
    head = teacher_head_of(target)
    assert check_teacher_head(target, head) < 1e-5
    with pytest.raises(ValueError, match="does more than a soft-capped linear head"):
        check_teacher_head(target, type(head)(head.weight_VD * 1.5, head.softcap))


def test_the_last_layer_and_layers_that_do_not_exist_are_refused():
    target = tiny_target()
    for layers in ([3], [4], [-2], []):
        with pytest.raises(ValueError, match=r"must name outputs of layers -1 \.\. 2"):
            TargetFeatures(target, layers)


def test_features_of_a_float16_target_are_not_float16():
    features = TargetFeatures(tiny_target().to(torch.float16), [0]).read(ROWS[:1])[0]
    assert (features.context.dtype, features.teacher.dtype) == (torch.float32, torch.float32)


def test_a_row_whose_states_are_not_finite_is_named():
    target = tiny_target()
    target.get_input_embeddings().weight[9] = float("nan")
    with pytest.raises(ValueError, match=r"Row 'a': .* NaN or infinity"):
        TargetFeatures(target, [0]).read(ROWS)


def test_a_fine_tuned_target_has_another_fingerprint():
    one, two = tiny_target(), tiny_target()
    assert weights_fingerprint(one) == weights_fingerprint(two)
    two.get_input_embeddings().weight.add_(0.01)
    assert weights_fingerprint(one) != weights_fingerprint(two)
