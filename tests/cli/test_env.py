"""`dspark-hf env`, as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner

from dspark_hf.cli import cli
from dspark_hf.hub.provenance import git_commit, write_provenance


def test_env_names_versions_and_hardware():
    result = CliRunner().invoke(cli, ["env"])
    assert result.exit_code == 0
    for word in ("torch", "transformers", "python", "cpu", "cores"):
        assert f"- {word}: " in result.stdout


def test_env_holds_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    text = CliRunner().invoke(cli, ["env", "--json"]).stdout
    assert "secretsecret" not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert os.getcwd() not in text
    assert json.loads(text).keys() == {"hardware", "platform", "versions"}


def test_provenance_blanks_a_token_out_of_the_command(tmp_path):
    path = write_provenance(tmp_path, command="dspark-hf push x y --token hf_secretsecret", training={"rows": 3})
    content = json.loads(path.read_text())
    assert content["command"] == "dspark-hf push x y --token hf_***"
    assert content["training"] == {"rows": 3}


def test_outside_of_a_repository_there_is_no_git_commit(tmp_path):
    assert git_commit(tmp_path) is None
