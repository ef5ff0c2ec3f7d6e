"""Fetches a repo's files into the local cache, patiently. Knows nothing of what they hold."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from .retry import with_retries


def download(
    repo_id: str, *, revision: str | None = None, repo_type: str = "model", token: str | bool | None = None
) -> Path:
    """
    Folder in the Hub cache that holds the repo at `revision`; a local folder is returned as it is.

    Interrupted downloads go on; server errors and dropped connections are tried again.

    Raises:
        HubError: the repo cannot be had; one line with the remedy.
    """
    if Path(repo_id).is_dir():
        return Path(repo_id)
    folder = with_retries(
        lambda: snapshot_download(repo_id, revision=revision, repo_type=repo_type, token=token), repo_id
    )
    return Path(folder)
