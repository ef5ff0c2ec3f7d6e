"""Brings a branch of a Hub repo to a wanted set of files, in one commit that is safe to repeat.

The only file that writes to the network. It knows paths and bytes, nothing of drafters or cards.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile

from .errors import HubError
from .retry import with_retries


Content = Path | bytes
# What a commit should hold: a function of the README that is there now, so that each attempt merges with the newest.
Files = Callable[[str | None], Mapping[str, Content]]


@dataclass(frozen=True)
class PushResult:
    """
    Where a push went.

    Args:
        repo_id (`str`): with its namespace.
        url (`str`): page of the repo.
        commit (`str`, *optional*): id of the new commit; `None` when nothing had changed.
        pull_request (`str`, *optional*): page of the pull request, where one was asked for.
        engine_commit (`str`, *optional*): id of the new commit on the branch that serving engines read.
    """

    repo_id: str
    url: str
    commit: str | None = None
    pull_request: str | None = None
    engine_commit: str | None = None

    @property
    def changed(self) -> bool:
        return self.commit is not None or self.engine_commit is not None


class Remote:
    """One repo on the Hub, as the pushes see it."""

    def __init__(self, repo_id: str, *, repo_type: str = "model", token: str | None = None):
        if not (token or get_token()):
            raise HubError(
                f"{repo_id}: pushing needs an access token; run `hf auth login`, set HF_TOKEN, or pass token=..."
            )
        self.api = HfApi(token=token)
        self.repo_type = repo_type
        self.repo_id = repo_id if "/" in repo_id else f"{with_retries(self.api.whoami, repo_id)['name']}/{repo_id}"

    def create(self, private: bool | None) -> str:
        """Make the repo where it is missing; returns its page. `private=None` leaves the choice to the account."""

        def step() -> str:
            url = self.api.create_repo(self.repo_id, repo_type=self.repo_type, private=private, exist_ok=True)
            if private is not None and bool(self._info("main").private) is not private:
                there, wanted = ("public", "private") if private else ("private", "public")
                raise HubError(
                    f"{self.repo_id}: the repo exists and is {there}, {wanted} was asked for; change it in its settings "
                    f"or push without saying"
                )
            return str(url)

        return with_retries(step, self.repo_id)

    def create_branch(self, branch: str) -> None:
        with_retries(
            lambda: self.api.create_branch(self.repo_id, branch=branch, repo_type=self.repo_type, exist_ok=True),
            self.repo_id,
        )

    def commit(
        self, files: Files, message: str, *, revision: str = "main", stale: Callable[[str], bool]
    ) -> str | None:
        """
        One commit that adds `files` and removes what `stale(path)` says; `None` when the branch holds that already.

        The commit names its parent, so that it never lands on a state it has not seen; a repeated attempt starts from
        the new head, and finds its own work where only the answer was lost.
        """

        def step() -> str | None:
            head = self._info(revision).sha
            operations = self._operations(files, head, stale)
            made = self.api.create_commit(
                self.repo_id,
                operations,
                commit_message=message,
                repo_type=self.repo_type,
                revision=revision,
                parent_commit=head,
            )
            return None if made.oid == head else made.oid

        before = with_retries(lambda: self._info(revision).sha, self.repo_id)
        made = with_retries(step, self.repo_id)
        if made is not None:
            return made
        after = with_retries(lambda: self._info(revision).sha, self.repo_id)
        return None if after == before else after

    def propose(self, files: Files, message: str, *, revision: str = "main") -> tuple[str | None, str | None]:
        """As `commit`, but as a pull request; returns the commit and the page of the request."""
        known = self._pull_requests()

        def step() -> tuple[str | None, str | None]:
            head = self._info(revision).sha
            for ref in sorted(self._pull_requests() - known):  # an attempt that lost its answer opened it already
                if not self._differing(files(self._readme(head)), ref):
                    number = ref.rsplit("/", 1)[1]
                    return self._info(ref).sha, f"{self._page()}/discussions/{number}"
            made = self.api.create_commit(
                self.repo_id,
                self._operations(files, head, lambda path: False),
                commit_message=message,
                repo_type=self.repo_type,
                revision=revision,
                create_pr=True,
                parent_commit=head,
            )
            return (made.oid, made.pr_url) if made.pr_url else (None, None)

        return with_retries(step, self.repo_id)

    def _info(self, revision: str):
        return self.api.repo_info(self.repo_id, repo_type=self.repo_type, revision=revision)

    def _page(self) -> str:
        return f"{self.api.endpoint}/{'' if self.repo_type == 'model' else self.repo_type + 's/'}{self.repo_id}"

    def _operations(self, files: Files, head: str, stale: Callable[[str], bool]) -> list:
        wanted = files(self._readme(head))
        there = self.api.list_repo_files(self.repo_id, repo_type=self.repo_type, revision=head)
        removed = [CommitOperationDelete(path) for path in there if path not in wanted and stale(path)]
        return removed + [CommitOperationAdd(path, content) for path, content in sorted(wanted.items())]

    def _readme(self, revision: str) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                path = self.api.hf_hub_download(
                    self.repo_id, "README.md", repo_type=self.repo_type, revision=revision, local_dir=folder
                )
            except EntryNotFoundError:
                return None
            return Path(path).read_text(encoding="utf-8")

    def _pull_requests(self) -> set[str]:
        def step() -> set[str]:
            refs = self.api.list_repo_refs(self.repo_id, repo_type=self.repo_type, include_pull_requests=True)
            return {ref.ref for ref in refs.pull_requests or []}

        return with_retries(step, self.repo_id)

    def _differing(self, wanted: Mapping[str, Content], revision: str) -> list[str]:
        rows = self.api.list_repo_tree(self.repo_id, repo_type=self.repo_type, revision=revision, recursive=True)
        there = {row.path: row for row in rows if isinstance(row, RepoFile)}
        return [path for path, content in wanted.items() if path not in there or not _same(there[path], content)]


def _same(row: RepoFile, content: Content) -> bool:
    if row.lfs is not None:
        return row.lfs.sha256 == CommitOperationAdd("file", content).upload_info.sha256.hex()
    data = content if isinstance(content, bytes) else content.read_bytes()
    return row.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
