"""The loss: the reference implementation's sums and gradients, backends that agree, and the options."""

import json

import pytest
import torch
from safetensors.torch import load_file

from dspark_hf import DSparkDrafter
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.training.anchors import slot_weights
from dspark_hf.training.batches import lay_out
from dspark_hf.training.losses import Denominators, LossWeights, dspark_loss
from dspark_hf.training.objective import DraftObjective
from dspark_hf.training.rows import Row
from dspark_hf.training.teacher import TeacherHead, outside_logits


FOLDERS = [f"{family}-{head}" for family in ("qwen3", "gemma4") for head in ("vanilla", "gated", "rnn", "none")]
BACKENDS = ("eager", "chunked")


def golden_batch(tensors):
    """The golden micro-batch in our layout: one row a sequence, its supervised span as the answer."""
    rows, anchors = [], []
    for index, mask in enumerate(tensors["train.loss_mask"].bool()):
        first, last = mask.nonzero()[0, 0], mask.nonzero()[-1, 0] + 1
        ids = tensors["train.input_ids"][index, :last].tolist()
        rows.append(Row(id=str(index), prompt_ids=ids[:first], completion_ids=ids[first:]))
        keep = tensors["train.block_keep_mask"][index]
        anchors.append(tensors["train.anchor_positions"][index][keep].numpy())
    contexts = [tensors["train.target_hidden_states"][i, : len(row.token_ids) - 1] for i, row in enumerate(rows)]
    last = tensors["train.target_last_hidden_states"]
    teacher = [last[i, len(row.prompt_ids) : len(row.token_ids) - 1] for i, row in enumerate(rows)]
    return rows, anchors, contexts, torch.cat(teacher)


@pytest.mark.parametrize("one_pack", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_sums_loss_and_gradients_equal_the_reference(golden, folder, backend, one_pack):
    path = golden / folder
    tensors = load_file(path / "tensors.safetensors")
    knobs = json.loads((path / "golden.json").read_text())["loss"]
    drafter = DSparkDrafter.from_pretrained(path / "drafter")
    for frozen in (drafter.embed_tokens, drafter.lm_head):
        frozen.requires_grad_(False)
    weights = LossWeights(
        ce=knobs["ce_loss_alpha"],
        l1=knobs["l1_loss_alpha"],
        confidence=knobs["confidence_head_alpha"],
        decay=knobs["loss_decay_gamma"],
    )
    rows, anchors, contexts, teacher = golden_batch(tensors)
    batch = lay_out(rows, anchors, num_slots=drafter.config.num_slots, decay=weights.decay, one_pack=one_pack)
    head = TeacherHead(drafter.lm_head.weight, drafter.config.final_logit_softcapping)
    objective = DraftObjective(drafter, head, weights=weights, backend=backend, chunk=16)
    result = objective(batch, contexts, teacher)
    result.loss.backward()

    assert result.loss.item() == pytest.approx(tensors["train.loss"].item(), abs=1e-4)
    assert result.slot_den.item() == pytest.approx(tensors["train.ce_loss_den"].item(), abs=1e-4)
    assert batch.weight_sum == pytest.approx(result.slot_den.item(), abs=1e-4)
    assert result.ce_num.item() == pytest.approx(tensors["train.ce_loss_num"].item(), abs=1e-3)
    if knobs["l1_loss_alpha"]:
        assert result.l1_num.item() == pytest.approx(tensors["train.l1_loss_num"].item(), abs=1e-4)
        assert result.confidence_num.item() == pytest.approx(tensors["train.confidence_loss_num"].item(), abs=1e-4)
    gradients = {name: weight.grad for name, weight in drafter.named_parameters() if weight.grad is not None}
    expected = {name.removeprefix("grad."): value for name, value in tensors.items() if name.startswith("grad.")}
    assert set(gradients) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(gradients[name], value, atol=1e-4, rtol=0, msg=name)


def random_blocks(seed=0, **overrides):
    """A tiny drafter, its teacher and 6 blocks with random states; the last one is short."""
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, bigram=False, **overrides)
    drafter.embed_tokens.requires_grad_(False)
    drafter.lm_head.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    count, slots = 6, drafter.config.num_slots
    valid = torch.ones(count, slots, dtype=torch.bool)
    valid[-1, 2:] = False
    blocks = {
        "hidden_NKD": torch.randn(count, slots, 32, generator=generator).requires_grad_(),
        "previous_NK": torch.randint(0, 64, (count, slots), generator=generator),
        "labels_NK": torch.randint(0, 64, (count, slots), generator=generator),
        "valid_NK": valid,
        "teacher_TD": torch.randn(20, 32, generator=generator),
        "teacher_NK": torch.randint(0, 20, (count, slots), generator=generator),
        "teacher_head": TeacherHead(target.get_output_embeddings().weight),
    }
    return drafter, blocks


def gradients_of(drafter, blocks, **options):
    for tensor in (*drafter.parameters(), blocks["hidden_NKD"]):
        tensor.grad = None
    result = dspark_loss(drafter, **blocks, **options)
    result.loss.backward()
    grads = {name: weight.grad for name, weight in drafter.named_parameters() if weight.grad is not None}
    return result, grads | {"hidden": blocks["hidden_NKD"].grad}


PRUNED = {"draft_vocab_size": 24}
OPTIONS = [
    LossWeights(),
    LossWeights(kl=0.5, l1=0.0),
    LossWeights(tau=0.3),
    LossWeights(ce=1.0, ce_labels="argmax"),
    LossWeights(ce=1.0, l1=0.0, confidence=0.0),
    LossWeights(confidence_detach=True),
]


@pytest.mark.parametrize("overrides", [{}, PRUNED], ids=["full", "pruned"])
@pytest.mark.parametrize("weights", OPTIONS, ids=str)
def test_chunked_equals_the_oracle_for_every_option(weights, overrides):
    drafter, blocks = random_blocks(**overrides)
    if overrides:
        drafter.set_draft_vocabulary(torch.arange(0, 64)[::2][:24])
    one, one_grads = gradients_of(drafter, blocks, weights=weights, backend="eager")
    two, two_grads = gradients_of(drafter, blocks, weights=weights, backend="chunked", chunk=5)
    for name, value in one._asdict().items():
        torch.testing.assert_close(two._asdict()[name], value, atol=2e-5, rtol=2e-5, msg=name)
    assert set(one_grads) == set(two_grads)
    for name, value in one_grads.items():
        torch.testing.assert_close(two_grads[name], value, atol=2e-5, rtol=2e-5, msg=name)


@pytest.mark.parametrize("weights", OPTIONS, ids=str)
def test_a_pruned_loss_with_the_mass_outside_at_hand_equals_the_oracle(weights):
    drafter, blocks = random_blocks(**PRUNED)
    ids = torch.arange(0, 64)[::2][:24]
    drafter.set_draft_vocabulary(ids)
    one, one_grads = gradients_of(drafter, blocks, weights=weights, backend="eager")
    outside = outside_logits(blocks["teacher_head"], blocks["teacher_TD"], ids, chunk=7)
    two, two_grads = gradients_of(drafter, blocks | {"outside_T": outside}, weights=weights, chunk=5)
    for name, value in one._asdict().items():
        torch.testing.assert_close(two._asdict()[name], value, atol=2e-5, rtol=2e-5, msg=name)
    for name, value in one_grads.items():
        torch.testing.assert_close(two_grads[name], value, atol=2e-5, rtol=2e-5, msg=name)


def test_the_mass_outside_survives_a_half_precision_head():
    drafter, blocks = random_blocks(**PRUNED)
    ids = torch.arange(24)
    drafter.set_draft_vocabulary(ids)
    half = TeacherHead(blocks["teacher_head"].weight_VD.to(torch.bfloat16))
    outside = outside_logits(half, blocks["teacher_TD"], ids, chunk=64)
    exact = dspark_loss(drafter, **(blocks | {"teacher_head": half}), backend="eager")
    fast = dspark_loss(drafter, **(blocks | {"teacher_head": half, "outside_T": outside}))
    torch.testing.assert_close(fast.accept_K, exact.accept_K, atol=0.03, rtol=0)


def test_acceptance_of_a_pruned_drafter_counts_the_mass_it_cannot_reach():
    drafter, blocks = random_blocks(**PRUNED)
    ids = torch.arange(0, 48)[::2]
    drafter.set_draft_vocabulary(ids)
    result = dspark_loss(drafter, **blocks)
    with torch.no_grad():
        logits, _ = drafter.teacher_forced(blocks["hidden_NKD"], blocks["previous_NK"])
        q = drafter.expand_logits(logits).softmax(-1)
        p = blocks["teacher_head"].logits(blocks["teacher_TD"])[blocks["teacher_NK"]].softmax(-1)
        covered = torch.minimum(p, q).sum(-1) * blocks["valid_NK"]
    torch.testing.assert_close(result.accept_K, covered.sum(0), atol=1e-4, rtol=0)


def test_slot_weights_decay_from_one_and_equal_errors_do_not_depend_on_the_decay():
    assert slot_weights(3, 4.0).tolist() == pytest.approx([1.0, 2.718281828**-0.25, 2.718281828**-0.5])
    drafter, blocks = random_blocks()
    blocks["teacher_NK"].zero_()
    blocks["labels_NK"].fill_(3)
    blocks["previous_NK"].fill_(5)
    blocks["hidden_NKD"] = torch.ones_like(blocks["hidden_NKD"]).requires_grad_()
    losses = [dspark_loss(drafter, **blocks, weights=LossWeights(decay=decay)).loss for decay in (1.0, 4.0)]
    torch.testing.assert_close(*losses)


def test_no_gradient_reaches_the_teacher_or_a_head_left_trainable():
    drafter, blocks = random_blocks()
    weight = blocks["teacher_head"].weight_VD.clone().requires_grad_()
    blocks |= {"teacher_head": TeacherHead(weight), "teacher_TD": blocks["teacher_TD"].requires_grad_()}
    for backend in BACKENDS:
        dspark_loss(drafter, **blocks, weights=LossWeights(ce=0.0, confidence=0.0), backend=backend).loss.backward()
    assert weight.grad is None
    assert blocks["teacher_TD"].grad is None
    assert drafter.lm_head.weight.grad is None


def test_cross_entropy_alone_needs_no_teacher_and_other_terms_name_what_is_missing():
    drafter, blocks = random_blocks()
    bare = {name: value for name, value in blocks.items() if not name.startswith("teacher")}
    alone = LossWeights(ce=1.0, l1=0.0, confidence=0.0)
    for backend in BACKENDS:
        result, _ = gradients_of(drafter, bare, weights=alone, backend=backend)
        assert result.loss > 0
        assert result.accept_K.sum() == 0
    with pytest.raises(ValueError, match=r"teacher_TD.*teacher_NK.*teacher_head"):
        dspark_loss(drafter, **bare, weights=LossWeights())


def test_a_detached_confidence_loss_leaves_the_body_alone():
    drafter, blocks = random_blocks()
    only = {"ce": 0.0, "l1": 0.0, "confidence": 1.0}
    for detach in (False, True):
        _, grads = gradients_of(drafter, blocks, weights=LossWeights(**only, confidence_detach=detach))
        assert bool(grads["hidden"].abs().sum() == 0) is detach


def test_sums_over_parts_with_common_denominators_equal_the_whole():
    drafter, blocks = random_blocks()
    whole, whole_grads = gradients_of(drafter, blocks)
    common = Denominators(slots=whole.slot_den, blocks=whole.block_den)
    parts, grads = 0.0, None
    for rows in (slice(0, 1), slice(1, 6)):
        part = {name: value[rows] if name.endswith("NK") else value for name, value in blocks.items()}
        part["hidden_NKD"] = blocks["hidden_NKD"][rows].detach().requires_grad_()
        result, found = gradients_of(drafter, part, denominators=common)
        parts += result.loss
        grads = found if grads is None else {name: grads[name] + found[name] for name in grads if name != "hidden"}
    torch.testing.assert_close(parts, whole.loss)
    for name, value in grads.items():
        torch.testing.assert_close(value, whole_grads[name], atol=1e-6, rtol=0)


def test_a_batch_without_blocks_has_a_finite_loss():
    drafter, blocks = random_blocks()
    empty = {name: value[:0] if name.endswith(("NK", "NKD")) else value for name, value in blocks.items()}
    for backend in BACKENDS:
        assert dspark_loss(drafter, **empty, backend=backend).loss == 0


def test_sampled_labels_follow_the_target():
    drafter, blocks = random_blocks()
    torch.manual_seed(0)
    draws = [dspark_loss(drafter, **blocks, weights=LossWeights(ce=1.0, ce_labels="sample")).ce_num for _ in range(2)]
    assert draws[0] != draws[1]


def test_wrong_names_are_told():
    drafter, blocks = random_blocks()
    with pytest.raises(ValueError, match="backend must be one of eager, chunked, triton"):
        dspark_loss(drafter, **blocks, backend="fast")
    with pytest.raises(ValueError, match="ce_labels must be"):
        LossWeights(ce_labels="model")
