"""One training forward: a block sees the past and itself, and packing changes nothing."""

import numpy as np
import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.training.batches import lay_out
from dspark_hf.training.losses import LossWeights
from dspark_hf.training.objective import DraftObjective
from dspark_hf.training.rows import Row
from dspark_hf.training.teacher import TeacherHead


LAYOUTS = [{}, {"sample_from_anchor": False}, {"markov_head_type": "rnn"}]


def setup(**overrides):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, bigram=False, **overrides)
    for module in (drafter.embed_tokens, drafter.lm_head):
        module.requires_grad_(False)
    head = TeacherHead(target.get_output_embeddings().weight)
    return DraftObjective(drafter, head, weights=LossWeights())


def rows_and_features(seed=0):
    generator = np.random.default_rng(seed)
    rows, contexts, teachers = [], [], []
    for index, (prompt, answer) in enumerate(((4, 2), (3, 5), (2, 20), (6, 40))):
        ids = generator.integers(1, 60, prompt + answer).tolist()
        rows.append(Row(id=str(index), prompt_ids=ids[:prompt], completion_ids=ids[prompt:]))
        contexts.append(torch.from_numpy(generator.normal(size=(len(ids) - 1, 96))).float())
        teachers.append(torch.from_numpy(generator.normal(size=(answer - 1, 32))).float())
    return rows, contexts, teachers


def anchors_of(row, count=6):
    first, last = len(row.prompt_ids), len(row.token_ids) - 2
    return np.unique(np.linspace(first, last, count).round().astype(np.int64))


def lay(objective, rows, anchors, one_pack=True):
    slots = objective.drafter.config.num_slots
    return lay_out(rows, anchors, num_slots=slots, decay=4.0, one_pack=one_pack)


@pytest.mark.parametrize("overrides", LAYOUTS, ids=str)
def test_a_block_does_not_move_when_context_at_or_after_its_anchor_changes(overrides):
    objective = setup(**overrides)
    rows, contexts, _ = rows_and_features()
    anchors = [np.array([10, 11, 12])]
    batch = lay(objective, rows[2:3], anchors)
    with torch.no_grad():
        before = objective.pack_hidden(batch.packs[0], contexts[2:3])
        changed = contexts[2].clone()
        changed[11:] += 100.0
        after = objective.pack_hidden(batch.packs[0], [changed])
    torch.testing.assert_close(after[:2], before[:2], atol=1e-6, rtol=0)
    assert (after[2] - before[2]).abs().max() > 1e-3


def test_a_block_does_not_depend_on_the_other_blocks():
    objective = setup()
    rows, contexts, _ = rows_and_features()
    with torch.no_grad():
        many = lay(objective, rows[3:], [np.arange(6, 44)])
        alone = lay(objective, rows[3:], [np.array([17])])
        together = objective.pack_hidden(many.packs[0], contexts[3:])[17 - 6]
        single = objective.pack_hidden(alone.packs[0], contexts[3:])[0]
    torch.testing.assert_close(together, single, atol=1e-5, rtol=0)


@pytest.mark.parametrize("overrides", LAYOUTS, ids=str)
def test_training_logits_of_a_block_equal_what_drafting_computes(overrides):
    objective = setup(**overrides)
    drafter = objective.drafter
    rows, contexts, _ = rows_and_features()
    ids = torch.tensor(rows[3].token_ids)
    for anchor in (6, 20, 30):
        drafted = drafter.draft_block(ids[anchor : anchor + 1], contexts[3][None, :anchor])
        forced = torch.cat([ids[: anchor + 1], drafted.tokens[0]])
        row = Row(id="x", prompt_ids=forced[:6].tolist(), completion_ids=forced[6:].tolist())
        batch = lay(objective, [row], [np.array([anchor])])
        context = torch.zeros(len(forced) - 1, 96)
        context[:anchor] = contexts[3][:anchor]
        with torch.no_grad():
            hidden = objective.pack_hidden(batch.packs[0], [context])
            logits, confidence = drafter.teacher_forced(hidden, batch.previous_NK)
        torch.testing.assert_close(logits, drafted.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(confidence, drafted.confidence_logits, atol=1e-5, rtol=0)


def loss_and_gradients(objective, batch, contexts, teachers):
    objective.zero_grad()
    result = objective(batch, contexts, torch.cat(teachers))
    result.loss.backward()
    return result, {
        name: weight.grad.clone() for name, weight in objective.named_parameters() if weight.grad is not None
    }


def test_packing_changes_neither_the_loss_nor_a_gradient():
    objective = setup()
    rows, contexts, teachers = rows_and_features()
    anchors = [anchors_of(row) for row in rows]
    results = [
        loss_and_gradients(objective, lay(objective, rows, anchors, one_pack), contexts, teachers)
        for one_pack in (False, True)
    ]
    assert results[0][0].loss.item() == pytest.approx(results[1][0].loss.item(), abs=1e-6)
    for name, value in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], value, atol=1e-6, rtol=0, msg=name)


def test_a_row_with_two_possible_anchors_gives_two_blocks_whatever_is_asked_for():
    from dspark_hf.training.batches import Collator

    objective = setup()
    row = Row(id="short", prompt_ids=[5, 6, 7], completion_ids=[8, 9, 10])
    context, teacher = torch.randn(5, 96), torch.randn(2, 32)
    found = []
    for count in (2, 8):
        batch = Collator(anchors_per_row=count, num_slots=5, decay=4.0)([(row, 0)])
        result, grads = loss_and_gradients(objective, batch, [context], [teacher])
        found.append((result._asdict(), grads))
        assert batch.num_blocks == 2
    for one, two in zip(found[0], found[1], strict=True):
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, atol=0, rtol=0)


def test_logged_sums_carry_no_graph():
    objective = setup()
    rows, contexts, teachers = rows_and_features()
    result = objective(lay(objective, rows, [anchors_of(row) for row in rows]), contexts, torch.cat(teachers))
    assert result.loss.grad_fn is not None
    assert all(value.grad_fn is None for name, value in result._asdict().items() if name != "loss")


def test_rows_without_anchors_give_a_zero_loss_and_a_gradient_for_nothing():
    objective = setup()
    rows, contexts, teachers = rows_and_features()
    batch = lay(objective, rows[:1], [np.zeros(0, dtype=np.int64)])
    result, grads = loss_and_gradients(objective, batch, contexts[:1], teachers[:1])
    assert result.loss == 0
    assert result.block_den == 0
    assert all((value == 0).all() for value in grads.values())
    assert "drafter.layers.0.mlp.up_proj.weight" in grads
