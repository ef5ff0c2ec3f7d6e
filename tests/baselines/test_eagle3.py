"""The serial drafter: its chain at inference equals its training-time test, and DeepSpec's folders open."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, DynamicCache

from dspark_hf.baselines import Eagle3Config, Eagle3Drafter, eagle3_config


# T entries of a row, K depths, D hidden, F features
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "target_layer_ids": [0, 1, 2],
    "num_target_layers": 4,
    "block_size": 4,
}


def random_drafter(**overrides) -> Eagle3Drafter:
    torch.manual_seed(0)
    drafter = Eagle3Drafter(eagle3_config(**{**SIZES, **overrides})).eval()
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if "norm" in name:
                weight.uniform_(0.6, 1.4)
            else:
                weight.normal_(std=0.3)
    return drafter


def start(drafter, ids, features, first, end, cache):
    last = torch.tensor([end - first - 1])
    return drafter.start_chain(
        ids[:, first + 1 : end + 1], features[:, first:end], torch.arange(first, end)[None], last, cache
    )


def test_a_chain_equals_the_training_time_test_at_every_depth_and_over_two_rounds():
    drafter = random_drafter()
    ids, features = torch.randint(0, 64, (1, 14)), torch.randn(1, 13, 96)
    with torch.no_grad():
        unrolled_1TKD = drafter(ids[:, 1:], features, steps=4)
        cache = DynamicCache()
        for first, end in ((0, 5), (5, 8)):
            chain = start(drafter, ids, features, first, end, cache)
            for depth in range(4):
                if depth:
                    drafter.extend_chain(chain, ids[:, end + depth])
                torch.testing.assert_close(chain.hidden_BD, unrolled_1TKD[:, end - 1, depth], atol=1e-4, rtol=1e-4)
        assert cache.get_seq_length() == 8


def test_a_chain_depends_on_the_token_drafted_before():
    drafter = random_drafter()
    ids, features = torch.randint(0, 64, (1, 8)), torch.randn(1, 7, 96)
    with torch.no_grad():
        chains = [start(drafter, ids, features, 0, 5, DynamicCache()) for _ in range(2)]
        for chain, token in zip(chains, (3, 4), strict=True):
            drafter.extend_chain(chain, torch.tensor([token]))
    assert (chains[0].hidden_BD - chains[1].hidden_BD).abs().max() > 1e-3


def test_padding_behind_a_row_changes_nothing():
    drafter = random_drafter()
    ids, features = torch.randint(0, 64, (1, 9)), torch.randn(1, 8, 96)
    padded_ids, padded_features = torch.nn.functional.pad(ids, (0, 3)), torch.nn.functional.pad(features, (0, 0, 0, 3))
    valid = torch.arange(11)[None] < 8
    with torch.no_grad():
        alone_1TKD = drafter(ids[:, 1:], features, steps=3)
        padded_1TKD = drafter(padded_ids[:, 1:], padded_features, steps=3, valid=valid)
    # the last entries of a row have no token to be fed at depth 2 and 3
    torch.testing.assert_close(padded_1TKD[:, :6], alone_1TKD[:, :6], atol=1e-5, rtol=1e-5)


def test_a_row_of_the_training_time_test_sees_no_later_entry():
    drafter = random_drafter()
    ids, features = torch.randint(0, 64, (1, 9)), torch.randn(1, 8, 96)
    changed = features.clone()
    changed[:, 5:] += 1
    with torch.no_grad():
        one, two = drafter(ids[:, 1:], features, steps=3), drafter(ids[:, 1:], changed, steps=3)
    torch.testing.assert_close(one[:, :5], two[:, :5])
    assert (one[:, 5:] - two[:, 5:]).abs().max() > 1e-3


def deepspec_folder(path, drafter, **changes):
    """The layout of `deepseek-ai/eagle3_*`: the target's configuration with four keys laid over it."""
    config = {key: SIZES[key] for key in SIZES if key != "block_size"}
    config |= {
        "architectures": ["Qwen3Eagle3Model"],
        "model_type": "qwen3",
        "ttt_length": 4,
        "step_loss_decay": 0.8,
        "num_hidden_layers": 1,
        "draft_num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    }
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps({key: value for key, value in (config | changes).items() if value is not None})
    )
    save_file({name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}, path / "model.safetensors")
    return path


def test_a_deepspec_folder_opens_with_its_tensors_and_depth(tmp_path):
    drafter = random_drafter()
    names = set(drafter.state_dict())
    assert {"fc.weight", "norm.weight", "layers.0.hidden_norm.weight", "layers.0.self_attn.q_norm.weight"} <= names
    assert drafter.state_dict()["layers.0.self_attn.q_proj.weight"].shape == (32, 64)
    opened = Eagle3Drafter.from_pretrained(deepspec_folder(tmp_path / "published", drafter))
    assert opened.config.block_size == opened.config.num_slots == 4
    for name, tensor in opened.state_dict().items():
        assert torch.equal(tensor, drafter.state_dict()[name]), name


def test_a_saved_drafter_opens_through_the_auto_class(tmp_path):
    drafter = random_drafter(draft_vocab_size=16)
    drafter.set_draft_vocabulary(torch.arange(0, 64, 4))
    drafter.save_pretrained(tmp_path)
    opened = AutoModel.from_pretrained(tmp_path)
    assert isinstance(opened, Eagle3Drafter)
    assert opened.draft_to_target().tolist() == list(range(0, 64, 4))
    assert load_file(tmp_path / "model.safetensors").keys() == drafter.state_dict().keys()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3Eagle3Model"),
        ({"ttt_length": None}, "ttt_length"),
        ({"draft_num_hidden_layers": 2}, "num_hidden_layers=2"),
        ({"target_layer_ids": [0, 1, 3]}, "target_layer_ids"),
    ],
)
def test_a_folder_that_is_no_eagle3_drafter_is_refused_by_name(tmp_path, changes, named):
    with pytest.raises(ValueError, match=named):
        Eagle3Config.from_pretrained(deepspec_folder(tmp_path / "published", random_drafter(), **changes))


def test_heads_of_a_block_drafter_are_refused():
    with pytest.raises(ValueError, match="markov_rank=0"):
        eagle3_config(**SIZES, markov_rank=8)
