"""The last step of a run: its drafter, or adapter, and if asked for its rows, to the Hub.

It knows nothing of how they were made; `hub/` does the sending.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

from dspark_hf.hub.errors import HubError
from dspark_hf.hub.push import ENGINE_BRANCH, PushResult, push_adapter, push_dataset, push_drafter
from dspark_hf.training.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """Where things went; `rows` is `None` unless the recipe publishes them."""

    drafter: PushResult
    rows: PushResult | None = None


def check_destination(recipe: Recipe, repo_id: str | None) -> str:
    """
    The repo a run will push to, looked at before anything is computed.

    Raises:
        ValueError: no repo named; HubError: no access token.
    """
    repo_id = repo_id or recipe.hub.repo_id
    if not repo_id:
        raise ValueError(
            "Where to push? Give --repo-id OWNER/NAME, set hub.repo_id, or stop at the folder with --no-push."
        )
    if not get_token():
        raise HubError(
            f"{repo_id}: pushing needs an access token; run `hf auth login`, set HF_TOKEN, or stop at the folder with "
            "--no-push."
        )
    return repo_id


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    recipe: Recipe,
    rows_folder: str | Path | None = None,
    private: bool | None = None,
    create_pr: bool = False,
) -> Published:
    """
    Pushes what a run made.

    Args:
        folder (`str` or `Path`): of the drafter or adapter.
        repo_id (`str`): destination; rows go to `<repo_id>-rows`.
        recipe ([`Recipe`]): its `hub` section.
        rows_folder (`str` or `Path`, *optional*): of the training rows, for `hub.push_rows`.
        private (`bool`, *optional*): visibility of new repos; `None` follows recipe, then account.
        create_pr (`bool`): open a pull request instead of a commit.
    """
    hub = recipe.hub
    common: dict[str, Any] = {
        "private": hub.private if private is None else private,
        "revision": hub.revision or "main",
        "create_pr": create_pr,
        "license": hub.license,
    }
    if (Path(folder) / "adapter_config.json").is_file():
        result = push_adapter(folder, repo_id, **common)
    else:
        result = push_drafter(folder, repo_id, engine_branch=ENGINE_BRANCH if hub.deepspec_branch else None, **common)
    if not hub.push_rows or rows_folder is None:
        return Published(drafter=result)
    return Published(drafter=result, rows=push_dataset(rows_folder, f"{result.repo_id}-rows", **common))
