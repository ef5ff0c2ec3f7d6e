"""Publishes a drafter, an adapter or training rows: one folder, one commit, safe to repeat.

Decides what goes where; `contents.py` gathers the files, `card*.py` write the README, `commit.py` talks to the Hub.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from transformers.utils import logging

from .card import DrafterCard
from .card_adapter import AdapterCard
from .card_dataset import DatasetCard
from .card_regions import is_untouched, merge
from .card_sources import read_json, read_weights, same_tensors
from .commit import Content, PushResult, Remote
from .contents import config_with_code, custom_generate, folder_files, is_weights, modelling_code
from .convert import convert_folder
from .formats import FormatError, format_of
from .target_license import target_license


logger = logging.get_logger(__name__)

ENGINE_BRANCH = "deepspec"


class _Card(Protocol):
    def render(self) -> str: ...


class _Choices(NamedTuple):
    private: bool | None
    revision: str
    create_pr: bool
    overwrite_card: bool
    message: str


def push_drafter(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str = "main",
    create_pr: bool = False,
    with_code: bool = True,
    engine_branch: str | None = ENGINE_BRANCH,
    overwrite_card: bool = False,
    license: str | None = None,
    message: str = "Publish drafter",
) -> PushResult:
    """
    Publish a drafter's folder: one commit with everything, and the engines' layout on a branch of its own.

    A push that was interrupted, or whose answer was lost, goes on when repeated; an unchanged folder makes no commit. A
    README that a person edited keeps what that person wrote.

    Args:
        folder (`str` or `Path`): `config.json`, safetensors, and what the stages left beside them.
        repo_id (`str`): `"owner/name"`, or `"name"` under the account of the token.
        private (`bool`, *optional*): visibility of a new repo; by default as the account has it.
        token (`str`, *optional*): access token; by default the one that `hf auth login` stored or `HF_TOKEN` holds.
        revision (`str`): branch of the commit.
        create_pr (`bool`): open a pull request instead; the engines' branch is then left alone.
        with_code (`bool`): ship the modelling code for `trust_remote_code` and `custom_generate/`.
        engine_branch (`str`, *optional*): branch for the layout of DeepSeek's checkpoints; `None` writes none.
        overwrite_card (`bool`): replace the README whatever it holds.
        license (`str`, *optional*): the target's licence identifier; by default the recipe's, else what the
            target's card says.
        message (`str`): title of the commit.

    Raises:
        HubError: the push failed; one line with repo and remedy.
        ValueError: the folder is no drafter, or a file in it is damaged.

    Example:

    ```python
    >>> push_drafter("out/drafter", "me/dspark-qwen3-4b-b7").url
    ```
    """
    folder = _checked(folder, "config.json")
    _require_native(folder)
    files: dict[str, Content] = dict(folder_files(folder))
    if with_code:
        files |= modelling_code() | custom_generate()
        files["config.json"] = config_with_code((folder / "config.json").read_bytes())
    remote = Remote(repo_id, token=token)
    with tempfile.TemporaryDirectory() as temporary:
        layout = {} if create_pr or engine_branch is None else _engine_layout(folder, Path(temporary))
        card = DrafterCard.from_folder(
            folder,
            repo_id=remote.repo_id,
            license=license,
            has_custom_generate=with_code,
            engine_branch=engine_branch if layout else None,
        )
        card.license = card.license or target_license(card.target, token=token)
        choices = _Choices(private, revision, create_pr, overwrite_card, message)
        result = _publish(remote, files, card, choices, stale=is_weights)
        if not layout or engine_branch is None:
            return result
        remote.create_branch(engine_branch)
        commit = remote.commit(
            lambda readme: layout,
            f"{message} in the layout of DeepSeek's checkpoints",
            revision=engine_branch,
            stale=lambda path: path != ".gitattributes",
        )
    return replace(result, engine_commit=commit)


def push_adapter(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str = "main",
    create_pr: bool = False,
    overwrite_card: bool = False,
    license: str | None = None,
    message: str = "Publish adapter",
) -> PushResult:
    """
    Publish a LoRA adapter's folder (`adapter_config.json`, `adapter_model.safetensors`); arguments as in [`push_drafter`].
    """
    folder = _checked(folder, "adapter_config.json")
    remote = Remote(repo_id, token=token)
    card = AdapterCard.from_folder(folder, repo_id=remote.repo_id, license=license)
    files = folder_files(folder)
    choices = _Choices(private, revision, create_pr, overwrite_card, message)
    return _publish(remote, files, card, choices, stale=is_weights)


def push_dataset(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str = "main",
    create_pr: bool = False,
    overwrite_card: bool = False,
    license: str | None = None,
    message: str = "Publish rows",
) -> PushResult:
    """
    Publish training rows (parquet or JSONL) as a dataset with a card; arguments as in [`push_drafter`].
    """
    folder = _checked(folder, None)
    remote = Remote(repo_id, repo_type="dataset", token=token)
    card = DatasetCard.from_folder(folder, repo_id=remote.repo_id, license=license)
    files = folder_files(folder)
    choices = _Choices(private, revision, create_pr, overwrite_card, message)
    return _publish(remote, files, card, choices, stale=lambda path: path.endswith((".parquet", ".jsonl")))


def _publish(
    remote: Remote,
    files: Mapping[str, Content],
    card: _Card,
    choices: _Choices,
    *,
    stale: Callable[[str], bool],
) -> PushResult:
    local = files.get("README.md")
    local_text = local.read_text(encoding="utf-8") if isinstance(local, Path) else ""
    rendered = card.render()

    def wanted(readme_there: str | None) -> dict[str, Content]:
        # A README that a person wrote into the folder is meant to be published; one of ours may be older than the Hub's.
        before = local_text if local_text.strip() and not is_untouched(local_text) else readme_there
        return {**files, "README.md": merge(before, rendered, overwrite=choices.overwrite_card).encode()}

    result = PushResult(repo_id=remote.repo_id, url=remote.create(choices.private))
    if choices.create_pr:
        commit, page = remote.propose(wanted, choices.message, revision=choices.revision)
        return replace(result, commit=commit, pull_request=page)
    if choices.revision != "main":
        remote.create_branch(choices.revision)
    commit = remote.commit(wanted, choices.message, revision=choices.revision, stale=stale)
    return replace(result, commit=commit)


def _require_native(folder: Path) -> None:
    kind = format_of(read_json(folder / "config.json"))
    if kind != "native":
        raise ValueError(
            f"{folder} is in {'an unknown format' if kind is None else f'the format {kind!r}'}, a push takes the native one (it "
            f"writes the others itself); first run `dspark-hf convert {folder} OUT --to native`"
        )


def _engine_layout(folder: Path, temporary: Path) -> dict[str, Content]:
    """Files of the engines' branch; none, with a warning, where that layout cannot say what this drafter does."""
    if absent := read_weights(folder).absent:
        logger.warning(
            f"{folder}: no layout for serving engines, it needs the {' and the '.join(absent)} of the target"
        )
        return {}
    try:
        convert_folder(folder, temporary, to="deepspec")
    except FormatError as error:
        logger.warning(f"{folder}: no layout for serving engines: {error}")
        return {}
    layout: dict[str, Content] = dict(folder_files(temporary))
    native = folder / "model.safetensors"
    if native.is_file() and same_tensors(native, temporary / "model.safetensors"):
        layout["model.safetensors"] = native  # equal files are stored, and uploaded, once
    return layout


def _checked(folder: str | Path, needed: str | None) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give the one that training wrote")
    if needed and not (folder / needed).is_file():
        raise ValueError(f"{folder} holds no {needed}; give the folder that training or conversion wrote")
    return folder


CARDS: dict[str, type[DrafterCard] | type[AdapterCard] | type[DatasetCard]] = {
    "drafter": DrafterCard,
    "adapter": AdapterCard,
    "dataset": DatasetCard,
}
PUSHES: dict[str, Callable[..., PushResult]] = {
    "drafter": push_drafter,
    "adapter": push_adapter,
    "dataset": push_dataset,
}


def folder_kind(folder: str | Path) -> str:
    """
    `"adapter"`, `"drafter"` or `"dataset"`, seen from the files of a folder.

    Raises:
        ValueError: it is none of them.
    """
    folder = Path(folder)
    if (folder / "adapter_config.json").is_file():
        return "adapter"
    if (folder / "config.json").is_file():
        return "drafter"
    if any(folder.rglob("*.parquet")) or any(folder.rglob("*.jsonl")):
        return "dataset"
    raise ValueError(
        f"{folder} holds neither config.json (a drafter), adapter_config.json (an adapter) nor rows (.parquet, .jsonl)"
    )


def preview(
    folder: str | Path, repo_id: str, *, kind: str, license: str | None = None, with_code: bool = True
) -> dict[str, Any]:
    """What a push would send, without asking the Hub: `{"repo_id", "kind", "files", "bytes", "card"}`."""
    folder = Path(folder)
    files: dict[str, Content] = dict(folder_files(folder))
    given: dict[str, Any] = {"repo_id": repo_id, "license": license}
    if kind == "drafter":
        files |= (modelling_code() | custom_generate()) if with_code else {}
        given["has_custom_generate"] = with_code
    card = CARDS[kind].from_folder(folder, **given).render()
    files["README.md"] = card.encode()
    size = sum(len(content) if isinstance(content, bytes) else content.stat().st_size for content in files.values())
    return {"repo_id": repo_id, "kind": kind, "files": sorted(files), "bytes": size, "card": card}


__all__ = [
    "CARDS",
    "ENGINE_BRANCH",
    "PUSHES",
    "PushResult",
    "folder_kind",
    "preview",
    "push_adapter",
    "push_dataset",
    "push_drafter",
]
