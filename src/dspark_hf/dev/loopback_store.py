"""Repos of the loopback Hub, in memory: commits, branches and pull requests. Knows nothing of HTTP."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


URL_PREFIX = {"models": "", "datasets": "datasets/", "spaces": "spaces/", "kernels": "kernels/"}


def blob_id(data: bytes) -> str:
    """Git's name for a file: sha1 over a length header and the bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Commit:
    """One state of a repo: its files, and which of them came through LFS."""

    oid: str
    title: str
    parent: str | None
    files: dict[str, bytes]
    lfs: frozenset[str] = frozenset()


@dataclass
class Repo:
    """Branches, pull requests and commits of one repo."""

    id: str
    kind: str
    private: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def resolve(self, revision: str = "main") -> Commit | None:
        """The commit behind a branch, a pull request (`refs/pr/1`) or a commit id."""
        return self.commits.get(self.refs.get(revision, revision))

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Contents by path at a revision; empty where the revision does not exist."""
        commit = self.resolve(revision)
        return dict(commit.files) if commit else {}

    def history(self, revision: str = "main") -> list[Commit]:
        """Commits of a revision, newest first; the last one is the empty commit that created the repo."""
        found, commit = [], self.resolve(revision)
        while commit is not None:
            found.append(commit)
            commit = self.commits.get(commit.parent or "")
        return found

    def add_commit(self, ref: str, title: str, files: dict[str, bytes], lfs: frozenset[str] = frozenset()) -> Commit:
        """Move `ref` to a new commit that holds exactly `files`."""
        parent = self.refs.get(ref)
        # Contents are part of the name: clients cache by commit, and a cleared Hub may see the same title again.
        state = [self.id, ref, parent, title, len(self.commits), *((p, blob_id(d)) for p, d in sorted(files.items()))]
        oid = hashlib.sha1(repr(state).encode()).hexdigest()
        commit = self.commits[oid] = Commit(oid, title, parent, files, lfs)
        self.refs[ref] = oid
        return commit
