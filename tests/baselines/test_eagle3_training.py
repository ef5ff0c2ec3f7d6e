"""Training the serial drafter: the loss looks at the right teacher rows, and it learns."""

import pytest
import torch

from dspark_hf.baselines import Eagle3Drafter, Eagle3Training, eagle3_config, eagle3_loss, train_eagle3
from dspark_hf.dev.tiny import tiny_target
from dspark_hf.training.features import TargetFeatures, teacher_head_of
from dspark_hf.training.rows import Row


LAYERS = [-1, 0, 2]


@pytest.fixture(scope="module")
def target():
    return tiny_target("qwen3")


def drafter_for(target, **overrides):
    text = target.config
    torch.manual_seed(0)
    config = eagle3_config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        target_layer_ids=LAYERS,
        num_target_layers=text.num_hidden_layers,
        **{"block_size": 3, **overrides},
    )
    drafter = Eagle3Drafter(config)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        kept = drafter.draft_to_target()
        head = target.get_output_embeddings().weight
        drafter.lm_head.weight.copy_(head if kept is None else head[kept])
    return drafter


def own_rows(target, count=6):
    torch.manual_seed(1)
    prompts = torch.randint(0, target.config.vocab_size, (count, 5))
    answers = target.generate(prompts, max_new_tokens=12, min_new_tokens=12, do_sample=True, pad_token_id=0)[:, 5:]
    return [
        Row(str(i), prompt, answer)
        for i, (prompt, answer) in enumerate(zip(prompts.tolist(), answers.tolist(), strict=True))
    ]


def loss_slot_by_slot(drafter, target, row):
    """The definition, one prediction at a time, from the target's own logits."""
    features = TargetFeatures(target, LAYERS).read([row])[0]
    ids = torch.tensor([row.token_ids])
    with torch.no_grad():
        p = target(ids).logits[0].float().softmax(-1)
    kept = drafter.draft_to_target()
    p = p if kept is None else p[:, kept]
    hidden = drafter(ids[:, 1:], features.context[None], steps=drafter.config.block_size)[0]
    total = 0.0
    for depth in range(drafter.config.block_size):
        terms = []
        for entry in range(len(row.prompt_ids) - 1, len(row.token_ids) - 1):
            predicted = entry + 2 + depth
            if predicted < len(row.token_ids):
                log_q = drafter.next_logits(hidden[entry, depth]).log_softmax(-1)
                terms.append(-(p[predicted - 1] * log_q).sum())
        total = total + drafter.config.step_loss_decay**depth * torch.stack(terms).mean()
    return total


@pytest.mark.parametrize(("pruned", "outside"), [(None, False), (24, False), (24, True)])
def test_the_loss_equals_its_definition_slot_by_slot(target, pruned, outside):
    drafter = drafter_for(target, draft_vocab_size=pruned)
    if pruned:
        drafter.set_draft_vocabulary(torch.arange(pruned) * 2)
    row = own_rows(target, 1)[0]
    source = TargetFeatures(target, LAYERS, vocabulary_U=drafter.draft_to_target() if outside else None)
    ours = eagle3_loss(drafter, [row], source.read([row]), teacher_head_of(target))
    torch.testing.assert_close(ours, loss_slot_by_slot(drafter, target, row), atol=1e-5, rtol=1e-5)


def test_rows_of_other_lengths_in_the_batch_do_not_matter(target):
    drafter = drafter_for(target)
    long, short = own_rows(target, 2)
    short = Row("short", short.prompt_ids, short.completion_ids[:5], finish_reason="length")
    source, head = TargetFeatures(target, LAYERS), teacher_head_of(target)
    counts = [[11, 10, 9], [4, 3, 2]]  # predictions per depth
    together = eagle3_loss(drafter, [long, short], source.read([long, short]), head)
    expected = 0.0
    for depth in range(3):
        parts = []
        for row, count in zip((long, short), counts, strict=True):
            drafter.config.block_size = depth + 1
            deeper = eagle3_loss(drafter, [row], source.read([row]), head)
            drafter.config.block_size = depth
            less = eagle3_loss(drafter, [row], source.read([row]), head) if depth else 0.0
            parts.append((deeper - less) / 0.8**depth * count[depth])
        expected += 0.8**depth * sum(parts) / sum(count[depth] for count in counts)
    drafter.config.block_size = 3
    torch.testing.assert_close(together, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_lowers_the_loss_and_leaves_embedding_and_head_alone(target, optimizer):
    drafter = drafter_for(target)
    before = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    settings = Eagle3Training(max_steps=60, rows_per_batch=4, optimizer=optimizer, learning_rate=5e-3)
    losses = train_eagle3(
        drafter, own_rows(target, 12), TargetFeatures(target, LAYERS), teacher_head_of(target), settings
    )
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    changed = {name for name, tensor in drafter.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name not in ("embed_tokens.weight", "lm_head.weight")}


def test_a_training_without_an_end_is_refused():
    with pytest.raises(ValueError, match="max_steps or max_minutes"):
        Eagle3Training()
