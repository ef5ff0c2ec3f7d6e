"""The serial drafter inside `generate`: same text, right distribution, and drafts that equal its training-time test."""

import pytest
import torch
from scipy.stats import chisquare

import dspark_hf
from dspark_hf.baselines import Eagle3Drafter, Eagle3Training, eagle3_config, train_eagle3
from dspark_hf.dev.tiny import tiny_target
from dspark_hf.generation.stats import recording
from dspark_hf.training.features import TargetFeatures, teacher_head_of
from dspark_hf.training.rows import Row


LAYERS = [-1, 0, 2]


def drafter_for(target, **overrides):
    text = target.config
    torch.manual_seed(0)
    fields = {
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "target_layer_ids": LAYERS,
        "num_target_layers": text.num_hidden_layers,
        "block_size": 4,
    }
    drafter = Eagle3Drafter(eagle3_config(**fields | overrides)).eval()
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        if drafter.config.draft_vocab_size is None:
            drafter.lm_head.weight.copy_(target.get_output_embeddings().weight)
    return drafter


@pytest.fixture(scope="module")
def target():
    return tiny_target("qwen3")


@pytest.fixture(scope="module")
def trained(target):
    torch.manual_seed(1)
    prompts = torch.randint(3, target.config.vocab_size, (24, 4))
    answers = target.generate(prompts, max_new_tokens=20, do_sample=False, pad_token_id=0)[:, 4:]
    rows = [Row(str(i), p, a) for i, (p, a) in enumerate(zip(prompts.tolist(), answers.tolist(), strict=True))]
    drafter = drafter_for(target)
    settings = Eagle3Training(max_steps=150, learning_rate=5e-3)
    train_eagle3(drafter, rows, TargetFeatures(target, LAYERS), teacher_head_of(target), settings)
    return drafter


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("processors", [{}, {"repetition_penalty": 1.3}])
def test_greedy_text_equals_plain_generate_for_one_row_and_many(target, trained, rows, processors):
    torch.manual_seed(2)
    ids = torch.randint(3, target.config.vocab_size, (rows, 7))
    mask = torch.ones_like(ids)
    for row in range(rows):
        ids[row, :row], mask[row, :row] = 0, 0
    options = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, **processors}
    plain = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, assistant_model=trained, **options), plain)
    assert trained.last_generation.tau > 1.2


@pytest.mark.parametrize("rows", [1, 2])
def test_every_draft_equals_the_training_time_test_on_the_whole_text(target, trained, rows):
    torch.manual_seed(3)
    ids = torch.randint(3, target.config.vocab_size, (rows, 6))
    mask = torch.ones_like(ids)
    mask[1:, :2] = 0
    records = []
    with recording(records.append):
        output = target.generate(
            ids, attention_mask=mask, max_new_tokens=16, do_sample=False, pad_token_id=0, assistant_model=trained
        )
    assert len(records) > 2
    for record in records:
        padding = int((mask[record.row] == 0).sum())
        committed = output[record.row, padding : 6 + record.position].tolist()
        row = Row("x", committed[:2], committed[2:] + record.tokens)
        features = TargetFeatures(target, LAYERS).read([row])[0]
        anchor = len(committed) - 1
        text = torch.tensor([row.token_ids])
        with torch.no_grad():
            hidden = trained(text[:, 1:], features.context[None], steps=len(record.tokens))[0, anchor - 1]
        assert trained.next_logits(hidden).argmax(-1).tolist() == record.tokens


def test_sampling_keeps_the_distribution_of_the_target():
    target = tiny_target("llama", vocab_size=8, eos_token_id=None, pad_token_id=None, bos_token_id=None)
    drafter = drafter_for(target)
    ids = torch.tensor([[3, 5, 1, 2]])
    torch.manual_seed(4)
    count = 1500
    options = {"max_new_tokens": 3, "do_sample": True, "top_k": 0, "temperature": 0.8, "pad_token_id": 0}
    drawn = target.generate(
        ids.repeat(count, 1), attention_mask=torch.ones(count, 4), assistant_model=drafter, **options
    )
    # the first token comes from the prompt's forward; the two after it are drafted or resampled
    pairs = drawn[:, 5] * 8 + drawn[:, 6]
    texts = torch.cartesian_prod(torch.arange(8), torch.arange(8))
    with torch.no_grad():
        p = (target(torch.cat([ids.repeat(64, 1), texts], dim=1)).logits[:, 3:] / 0.8).softmax(-1)
    joint = p[:, 0].gather(1, texts[:, :1]) * p[:, 1].gather(1, texts[:, 1:])
    expected = (joint * p[:, 2]).view(8, 64).sum(0).double() * count
    found = torch.bincount(pairs, minlength=64).double()
    kept = expected >= 5
    observed = torch.cat([found[kept], found[~kept].sum()[None]])
    wanted = torch.cat([expected[kept], expected[~kept].sum()[None]])
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3
    stats = drafter.last_generation
    assert 0 < stats.accepted < stats.verified


def test_a_pruned_vocabulary_keeps_the_text(target):
    drafter = drafter_for(target, draft_vocab_size=16)
    drafter.set_draft_vocabulary(torch.arange(16) * 3)
    ids = torch.arange(3, 9)[None]
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(dspark_hf.generate(target, drafter, ids, **options), target.generate(ids, **options))
