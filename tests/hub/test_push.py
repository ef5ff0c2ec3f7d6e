"""Pushing, through the real client against the loopback Hub."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModel, GenerationConfig

from dspark_hf import DSparkDrafter
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.hub import HubError, push_adapter, push_dataset, push_drafter
from dspark_hf.hub.convert import convert_folder


def equal_weights(first, second) -> bool:
    left, right = first.state_dict(), second.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_push_is_one_commit_on_main_with_everything(hub, drafter_folder):
    (drafter_folder / "training_recipe.yaml").write_text("train:\n  learning_rate: 0.0006\n")
    result = push_drafter(drafter_folder, "tester/dspark-tiny")
    repo = hub.repos["tester/dspark-tiny"]
    assert result.url == f"{hub.endpoint}/tester/dspark-tiny"
    assert result.commit == repo.refs["main"]
    assert len(repo.history("main")) == 2
    assert {
        "README.md",
        "config.json",
        "model.safetensors",
        "training_recipe.yaml",
        "modeling_dspark.py",
        "configuration_dspark.py",
        "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    } <= set(repo.files("main"))


def test_what_was_pushed_loads_equal(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    assert equal_weights(
        DSparkDrafter.from_pretrained("tester/dspark-tiny"), DSparkDrafter.from_pretrained(drafter_folder)
    )


def test_the_installed_class_wins_over_the_code_in_the_repo(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    assert type(AutoModel.from_pretrained("tester/dspark-tiny", trust_remote_code=True)) is DSparkDrafter


def test_the_code_in_the_repo_works_where_the_package_is_not_installed(hub, drafter_folder, tmp_path):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    script = (
        "import sys; sys.modules['dspark_hf'] = None\n"
        "import torch; from transformers import AutoModel\n"
        "drafter = AutoModel.from_pretrained('tester/dspark-tiny', trust_remote_code=True)\n"
        "block = drafter.draft_block(torch.tensor([1]), torch.zeros(1, 3, 96))\n"
        "print(block.tokens.shape[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "5"


def test_the_engine_branch_has_another_config_and_the_same_weight_bytes(hub, drafter_folder):
    result = push_drafter(drafter_folder, "tester/dspark-tiny")
    repo = hub.repos["tester/dspark-tiny"]
    assert result.engine_commit == repo.refs["deepspec"]
    main, engine = repo.files("main"), repo.files("deepspec")
    assert json.loads(engine["config.json"])["architectures"] == ["Qwen3DSparkModel"]
    assert engine["model.safetensors"] == main["model.safetensors"]
    assert "README.md" not in engine
    assert "modeling_dspark.py" not in engine


def test_a_drafter_whose_head_is_its_embedding_reaches_the_engines_with_both(hub, tmp_path):
    drafter = tiny_drafter(tiny_target(), tie_word_embeddings=True)
    drafter.save_pretrained(tmp_path / "drafter")
    push_drafter(tmp_path / "drafter", "tester/dspark-tiny")
    repo = hub.repos["tester/dspark-tiny"]
    assert b'"lm_head.weight"' not in repo.files("main")["model.safetensors"]
    assert b'"lm_head.weight"' in repo.files("deepspec")["model.safetensors"]
    assert equal_weights(DSparkDrafter.from_pretrained("tester/dspark-tiny"), drafter)


def test_a_drafter_that_the_engines_layout_cannot_describe_is_pushed_without_the_branch(hub, tmp_path):
    target = tiny_target()
    tiny_drafter(target, sample_from_anchor=False).save_pretrained(tmp_path / "drafter")
    result = push_drafter(tmp_path / "drafter", "tester/dspark-tiny")
    repo = hub.repos["tester/dspark-tiny"]
    assert result.engine_commit is None
    assert set(repo.refs) == {"main"}
    assert "Serving elsewhere" not in repo.files()["README.md"].decode()


def test_the_licence_is_the_target_s_own(hub, drafter_folder):
    config = json.loads((drafter_folder / "config.json").read_text()) | {"target_name_or_path": "acme/target"}
    (drafter_folder / "config.json").write_text(json.dumps(config))
    push_drafter(drafter_folder, "tester/before", engine_branch=None)
    assert "license" not in ModelCard(hub.repos["tester/before"].files()["README.md"].decode()).data.to_dict()
    HfApi().create_repo("acme/target")
    hub.repos["acme/target"].add_commit("main", "card", {"README.md": b"---\nlicense: gemma\n---\n# target"})
    push_drafter(drafter_folder, "tester/after", engine_branch=None)
    assert ModelCard(hub.repos["tester/after"].files()["README.md"].decode()).data.license == "gemma"


def test_an_unchanged_folder_makes_no_commit(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    refs = dict(hub.repos["tester/dspark-tiny"].refs)
    again = push_drafter(drafter_folder, "tester/dspark-tiny")
    assert hub.repos["tester/dspark-tiny"].refs == refs
    assert (again.commit, again.engine_commit, again.changed) == (None, None, False)


def test_weights_that_the_folder_no_longer_has_leave_the_repo(hub, drafter_folder):
    shard = drafter_folder / "model-00002-of-00002.safetensors"
    shard.write_bytes((drafter_folder / "model.safetensors").read_bytes())
    push_drafter(drafter_folder, "tester/dspark-tiny", engine_branch=None)
    shard.unlink()
    push_drafter(drafter_folder, "tester/dspark-tiny", engine_branch=None)
    assert "model-00002-of-00002.safetensors" not in hub.repos["tester/dspark-tiny"].files()


def test_files_that_others_added_to_the_repo_stay(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    repo = hub.repos["tester/dspark-tiny"]
    repo.add_commit("main", "by hand", repo.files() | {"notes.txt": b"mine"})
    (drafter_folder / "generation_config.json").write_text("{}")
    push_drafter(drafter_folder, "tester/dspark-tiny")
    assert repo.files()["notes.txt"] == b"mine"


def test_a_hand_written_card_survives_a_second_push(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    repo = hub.repos["tester/dspark-tiny"]
    edited = repo.files()["README.md"].decode() + "\nMy own remark.\n"
    repo.add_commit("main", "edit", repo.files() | {"README.md": edited.encode()})
    push_drafter(drafter_folder, "tester/dspark-tiny", license="mit")
    card = repo.files()["README.md"].decode()
    assert "My own remark." in card
    assert "License: mit" in card


def test_overwrite_replaces_even_a_hand_written_card(hub, drafter_folder):
    (drafter_folder / "README.md").write_text("# Mine alone\n")
    push_drafter(drafter_folder, "tester/dspark-tiny")
    assert "# Mine alone" in hub.repos["tester/dspark-tiny"].files()["README.md"].decode()
    push_drafter(drafter_folder, "tester/dspark-tiny", overwrite_card=True)
    assert "# Mine alone" not in hub.repos["tester/dspark-tiny"].files()["README.md"].decode()


def test_visibility_follows_the_account_unless_said(hub, drafter_folder, monkeypatch):
    monkeypatch.setattr(hub, "private_by_default", True)
    for name, said, expected in (("a", None, True), ("b", False, False), ("c", True, True)):
        push_drafter(drafter_folder, f"tester/{name}", private=said, engine_branch=None)
        assert hub.repos[f"tester/{name}"].private is expected


def test_a_public_repo_is_not_taken_for_a_private_one(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    with pytest.raises(HubError, match="tester/dspark-tiny: the repo exists and is public, private was asked for"):
        push_drafter(drafter_folder, "tester/dspark-tiny", private=True)


def test_a_pull_request_changes_no_branch(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny", engine_branch=None)
    before = hub.repos["tester/dspark-tiny"].refs["main"]
    (drafter_folder / "eval_results.json").write_text('{"format_version": 1}')
    result = push_drafter(drafter_folder, "tester/dspark-tiny", create_pr=True)
    repo = hub.repos["tester/dspark-tiny"]
    assert result.pull_request == f"{hub.endpoint}/tester/dspark-tiny/discussions/1"
    assert repo.refs["main"] == before
    assert "eval_results.json" in repo.files("refs/pr/1")
    assert "deepspec" not in repo.refs


def test_a_name_without_an_owner_goes_under_the_account(hub, drafter_folder):
    assert push_drafter(drafter_folder, "dspark-tiny").repo_id == "tester/dspark-tiny"


def test_pickles_checkpoints_and_hidden_files_stay_at_home(hub, drafter_folder):
    for name in ("optimizer.pt", "checkpoint-10/model.safetensors", ".env", "pytorch_model.bin", "train.log"):
        path = drafter_folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    push_drafter(drafter_folder, "tester/dspark-tiny")
    pushed = " ".join(hub.repos["tester/dspark-tiny"].files())
    for name in ("optimizer.pt", "checkpoint-10", ".env", "pytorch_model.bin", "train.log"):
        assert name not in pushed


def test_a_file_that_holds_a_token_is_refused(hub, drafter_folder):
    (drafter_folder / "training_recipe.yaml").write_text("hub:\n  token: hf_abcdefghijkl\n")
    with pytest.raises(ValueError, match=r"training_recipe\.yaml seems to hold an access token"):
        push_drafter(drafter_folder, "tester/dspark-tiny")
    assert hub.repos == {}


def test_the_token_appears_in_no_file_and_no_message(hub, drafter_folder, caplog):
    token = "hf_secretsecretsecret"
    with caplog.at_level(logging.DEBUG):
        push_drafter(drafter_folder, "tester/dspark-tiny", token=token)
        hub.revoked.add(token)
        with pytest.raises(HubError) as error:
            push_drafter(drafter_folder, "tester/dspark-tiny", token=token)
    assert token not in str(error.value)
    assert not any(token in record.getMessage() for record in caplog.records if record.name.startswith("dspark_hf"))
    assert not any(token.encode() in data for data in hub.repos["tester/dspark-tiny"].files().values())


def test_no_token_is_one_clear_line(hub, drafter_folder, monkeypatch):
    monkeypatch.setattr("dspark_hf.hub.commit.get_token", lambda: None)
    with pytest.raises(HubError) as error:
        push_drafter(drafter_folder, "tester/dspark-tiny", private=True)
    assert str(error.value) == (
        "tester/dspark-tiny: pushing needs an access token; run `hf auth login`, set HF_TOKEN, or pass token=..."
    )


@pytest.mark.parametrize(
    ("repo_id", "expected"),
    [
        ("stranger/model", "stranger/model: this token may not write there"),
        ("acme/model", None),
    ],
)
def test_a_foreign_namespace_is_one_clear_line(hub, drafter_folder, repo_id, expected):
    if expected is None:
        assert push_drafter(drafter_folder, repo_id).repo_id == repo_id
        return
    with pytest.raises(HubError, match=expected) as error:
        push_drafter(drafter_folder, repo_id)
    assert "\n" not in str(error.value)


def test_a_folder_without_weights_or_config_is_refused_before_the_hub_is_asked(hub, tmp_path, drafter_folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        push_drafter(tmp_path / "empty", "tester/x")
    (drafter_folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no \.safetensors file"):
        push_drafter(drafter_folder, "tester/x")
    with pytest.raises(ValueError, match="is no folder"):
        push_drafter(tmp_path / "nowhere", "tester/x")
    assert hub.repos == {}


def test_a_folder_in_another_format_is_refused_with_the_remedy(hub, drafter_folder, tmp_path):
    convert_folder(drafter_folder, tmp_path / "engine", to="deepspec")
    with pytest.raises(ValueError, match=r"in the format 'deepspec'.*dspark-hf convert .* --to native"):
        push_drafter(tmp_path / "engine", "tester/dspark-tiny")
    assert hub.repos == {}


def test_an_adapter_is_pushed_with_its_own_card(hub, adapter_folder):
    push_adapter(adapter_folder, "tester/dspark-tiny-lora")
    files = hub.repos["tester/dspark-tiny-lora"].files()
    card = files["README.md"].decode()
    assert "library_name: peft" in card
    assert "base_model: tester/dspark-tiny" in card
    assert "base_model_relation: adapter" in card
    assert "adapter_model.safetensors" in files


def test_rows_are_pushed_as_a_dataset_that_loads(hub, rows_folder):
    import datasets

    (rows_folder / "plan.json").write_text('{"target": "/home/me/target"}')
    push_dataset(rows_folder, "tester/rows")
    rows = datasets.load_dataset("tester/rows", split="train")
    assert rows["completion_ids"][:] == [[4, 5, 6], [7]]
    assert "plan.json" not in hub.repos["datasets/tester/rows"].files()
    assert "Cut at the token limit | 1" in hub.repos["datasets/tester/rows"].files()["README.md"].decode()


def test_a_drafter_saves_beside_a_target_whose_generation_config_mixes_modes(hub, tmp_path):
    target = tiny_target()
    target.generation_config = GenerationConfig(do_sample=False, temperature=0.6)
    drafter = tiny_drafter(target)
    drafter.save_pretrained(tmp_path / "drafter")
    push_drafter(tmp_path / "drafter", "tester/dspark-tiny")
    assert equal_weights(DSparkDrafter.from_pretrained("tester/dspark-tiny"), drafter)


def test_generate_finds_the_decoding_in_the_repo_itself(hub, drafter_folder):
    push_drafter(drafter_folder, "tester/dspark-tiny")
    target, prompt = tiny_target(), torch.tensor([[5, 6, 7]])
    options = {"max_new_tokens": 12, "do_sample": False}
    plain = target.generate(prompt, **options)
    drafter = DSparkDrafter.from_pretrained(drafter_folder)
    for assistant in (drafter, "tester/dspark-tiny"):
        drafted = target.generate(
            prompt,
            custom_generate="tester/dspark-tiny",
            assistant_model=assistant,
            trust_remote_code=True,
            **options,
        )
        assert torch.equal(drafted, plain)
    assert drafter.last_generation.new_tokens == 12
