"""A drafter's repository with its own code works without this package, and never runs that code unasked."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import dspark_hf
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.hub.contents import AUTO_MAP, config_with_code, modelling_code


# a process in which `import dspark_hf` fails, as on a machine without it
CLEAN = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "dspark_hf":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from safetensors.torch import load_file, save_file
from transformers import AutoModel
try:
    AutoModel.from_pretrained(sys.argv[1], trust_remote_code=False)
except ValueError as error:
    print(error)
print("modules before trust:", any("transformers_modules" in name for name in sys.modules))
drafter = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
given = load_file(sys.argv[2])
block = drafter.draft_block(given["anchor"], given["context"])
save_file({"tokens": block.tokens, "logits": block.logits}, sys.argv[2] + ".out")
print(type(drafter).__module__)
"""


@pytest.fixture
def repository(tmp_path):
    drafter = tiny_drafter(tiny_target("gemma4"), markov_head_type="rnn", bigram=False)
    folder = tmp_path / "repo"
    drafter.save_pretrained(folder)
    for name, code in modelling_code().items():
        (folder / name).write_bytes(code)
    (folder / "config.json").write_bytes(config_with_code((folder / "config.json").read_bytes()))
    given = {"anchor": torch.tensor([5]), "context": torch.randn(1, 6, 96)}
    save_file(given, tmp_path / "given")
    return folder, tmp_path / "given", drafter.draft_block(given["anchor"], given["context"])


def test_the_code_in_the_repository_drafts_without_the_package_once_it_is_trusted(repository):
    folder, given, expected = repository
    command = [sys.executable, "-c", CLEAN, str(folder), str(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trust_remote_code=True" in done.stdout
    assert "modules before trust: False" in done.stdout
    found = load_file(f"{given}.out")
    assert torch.equal(found["tokens"], expected.tokens)
    torch.testing.assert_close(found["logits"], expected.logits, atol=5e-6, rtol=0)
    assert "transformers_modules" in done.stdout.splitlines()[-1]


def test_the_installed_class_wins_over_the_code_in_the_repository(repository):
    folder, _, _ = repository
    for path in folder.glob("*.py"):
        path.write_text("raise SystemExit('the code ran')\n")
    for trust in (True, False):
        assert type(AutoModel.from_pretrained(folder, trust_remote_code=trust)) is dspark_hf.DSparkDrafter


def test_a_published_file_that_asks_for_code_loads_without_running_any(golden, tmp_path):
    shutil.copytree(golden / "qwen3-vanilla" / "drafter", tmp_path / "repo", copy_function=shutil.copy)
    config = json.loads((tmp_path / "repo" / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}
    (tmp_path / "repo" / "config.json").write_text(json.dumps(config))
    (tmp_path / "repo" / "evil.py").write_text("raise SystemExit('the code ran')\n")
    assert dspark_hf.DSparkDrafter.from_pretrained(tmp_path / "repo").config.block_size == 5


def test_saving_does_not_copy_code_by_itself(tmp_path):
    tiny_drafter(tiny_target("qwen3")).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))


def test_registering_for_the_auto_classes_copies_the_closed_set(tmp_path, monkeypatch):
    for kind, auto in ((dspark_hf.DSparkConfig, "AutoConfig"), (dspark_hf.DSparkDrafter, "AutoModel")):
        # so that the registration ends with the test
        monkeypatch.setattr(kind, "_auto_class", None, raising=False)
        kind.register_for_auto_class(auto)
    tiny_drafter(tiny_target("qwen3")).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.py")} == set(modelling_code())
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP
