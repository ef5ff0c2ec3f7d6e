"""The reference implementations' tensors, reproduced through `from_pretrained`, as published and after conversion."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dspark_hf.hub.convert import convert_folder
from dspark_hf.models import DSparkDrafter


DEEPSPEC = [f"{family}-{head}" for family in ("qwen3", "gemma4") for head in ("none", "vanilla", "gated", "rnn")]
SPECULATORS = ["speculators-dflash", "speculators-dspark-vanilla", "speculators-dspark-rnn-pruned"]
TOLERANCE = 1e-4


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def open_as(golden, name, layout, folder):
    """The reference drafter as published, or after going through other formats."""
    source, target = golden / name / "drafter", None
    if "speculators" in layout:
        target = AutoModelForCausalLM.from_pretrained(golden / name / "target")
    for number, to in enumerate(layout.split("-")[1:]):
        convert_folder(source, folder / f"{number}", to=to, target=target)
        source = folder / f"{number}"
    return DSparkDrafter.from_pretrained(source, target=target)


LAYOUTS = [
    (name, layout)
    for name in DEEPSPEC
    for layout in ("published", "to-native", "to-native-deepspec", "to-speculators", "to-speculators-native-deepspec")
    if not ("speculators" in layout and name.startswith("gemma4"))
]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_a_block_equals_the_reference(golden, tmp_path, name, layout):
    drafter = open_as(golden, name, layout, tmp_path)
    tensors = load_file(golden / name / "tensors.safetensors")

    block = drafter.draft_block(tensors["draft.anchor"], tensors["draft.context_hidden_states"])

    assert torch.equal(block.tokens, tensors["draft.tokens"])
    close(block.hidden_states, tensors["draft.block_hidden"])
    close(drafter.base_logits(block.hidden_states), tensors["draft.base_logits"])
    close(block.logits, tensors["draft.logits"])
    if "draft.confidence_logits" in tensors:
        close(block.confidence_logits, tensors["draft.confidence_logits"])
    else:
        assert block.confidence_logits is None


def side_by_side(drafter, tensors, row):
    """All blocks of a training row in one forward: `[N, K, D]`, under a mask of context before the anchor and own block."""
    anchors = tensors["train.anchor_positions"][row]
    ids, context = tensors["train.input_ids"][row], tensors["train.target_hidden_states"][row]
    size, length, count = drafter.config.block_size, len(ids), len(anchors)
    rows = torch.arange(count * size)
    before = torch.arange(length)[None] < anchors[rows // size][:, None]
    own = rows[:, None] // size == rows[None] // size
    positions = torch.cat([torch.arange(length), (anchors[:, None] + torch.arange(size)).flatten()])
    hidden = drafter(
        drafter.make_block(ids[anchors]).reshape(1, -1),
        context[None],
        positions[None],
        torch.cat([before, own], dim=1)[None, None],
    )
    return drafter.slot_hidden(hidden.view(count, size, -1))


@pytest.mark.parametrize("name", DEEPSPEC)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_blocks_side_by_side_equal_the_reference_in_training(golden, name, attention):
    drafter = DSparkDrafter.from_pretrained(golden / name / "drafter", attn_implementation=attention)
    tensors = load_file(golden / name / "tensors.safetensors")
    for row, keep in enumerate(tensors["train.block_keep_mask"]):
        anchors = tensors["train.anchor_positions"][row]
        previous = torch.cat(
            [tensors["train.input_ids"][row][anchors][:, None], tensors["train.target_ids"][row][:, :-1]], dim=1
        )
        logits, confidence = drafter.teacher_forced(side_by_side(drafter, tensors, row), previous)

        # the reference fills slots it does not evaluate with tokens of its own choice
        known = keep[:, None] & tensors["train.eval_mask"][row]
        close(logits[known], tensors["train.draft_logits"][row][known])
        if confidence is not None:
            close(confidence[known], tensors["train.confidence_logits"][row][known])


@pytest.fixture(scope="module")
def verifier(golden):
    return AutoModelForCausalLM.from_pretrained(golden / "qwen3-vanilla" / "target")


@pytest.mark.parametrize("layout", ["published", "to-native", "to-native-speculators"])
@pytest.mark.parametrize("name", SPECULATORS)
def test_a_speculators_drafter_equals_its_own_package(golden, tmp_path, verifier, name, layout):
    source = golden / name / "drafter"
    for number, to in enumerate(layout.split("-")[1:]):
        convert_folder(source, tmp_path / f"{number}", to=to, target=verifier)
        source = tmp_path / f"{number}"
    drafter = DSparkDrafter.from_pretrained(source, target=verifier)
    tensors = load_file(golden / name / "tensors.safetensors")

    for index, anchor in enumerate(tensors["anchor_positions"]):
        context = tensors["context_hidden_states"][:, :anchor]
        hidden = drafter(drafter.make_block(tensors["input_ids"][:, anchor]), context)
        close(hidden[0], tensors["block_hidden"][index])
        close(drafter.base_logits(hidden)[0], tensors["base_logits"][index])
        if "corrected_logits" in tensors:
            previous = tensors["teacher_forced_prev_tokens"][index : index + 1]
            logits, confidence = drafter.teacher_forced(hidden, previous)
            close(logits[0], tensors["corrected_logits"][index])
            close(confidence[0], tensors["confidence_logits"][index])


def test_a_dflash_block_drops_the_row_of_the_anchor(golden, verifier):
    drafter = DSparkDrafter.from_pretrained(golden / "speculators-dflash" / "drafter", target=verifier)
    tensors = load_file(golden / "speculators-dflash" / "tensors.safetensors")
    anchor = tensors["anchor_positions"][1]

    block = drafter.draft_block(tensors["input_ids"][:, anchor], tensors["context_hidden_states"][:, :anchor])

    assert block.tokens.shape == (1, 4)
    assert torch.equal(block.tokens[0], tensors["base_logits"][1][1:].argmax(dim=-1))


def test_a_pruned_vocabulary_drafts_over_the_whole_one(golden, verifier):
    folder = golden / "speculators-dspark-rnn-pruned"
    drafter = DSparkDrafter.from_pretrained(folder / "drafter", target=verifier)
    tensors = load_file(folder / "tensors.safetensors")
    offsets = load_file(folder / "drafter" / "model.safetensors")["d2t"]
    covered = offsets + torch.arange(len(offsets))
    anchor = tensors["anchor_positions"][0]

    block = drafter.draft_block(
        tensors["input_ids"][:, anchor], tensors["context_hidden_states"][:, :anchor], temperature=1.0
    )
    hidden = drafter(drafter.make_block(tensors["input_ids"][:, anchor]), tensors["context_hidden_states"][:, :anchor])
    previous = torch.cat([tensors["input_ids"][:, anchor], block.tokens[0, :-1]])[None]
    pruned, _ = drafter.teacher_forced(hidden, previous)

    assert block.logits.shape[-1] == 96
    assert set(block.tokens.flatten().tolist()) <= set(covered.tolist())
    q = block.logits.softmax(dim=-1)
    close(q[..., covered], pruned.softmax(dim=-1))
    outside = torch.ones(96, dtype=torch.bool)
    outside[covered] = False
    assert float(q[..., outside].sum()) == 0.0
    close(q.sum(dim=-1), torch.ones(1, 5))
