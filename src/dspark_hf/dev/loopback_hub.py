"""A Hub on 127.0.0.1, standard library only: what `huggingface_hub` needs to push, load and open pull requests.

It keeps repos in memory and can misbehave on demand (`LoopbackHub.faults`). It knows nothing of models or of this
package, so that a test suite can start it before any library reads `HF_ENDPOINT`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from .loopback_routes import Handler
from .loopback_store import Repo


TOKEN = "hf_loopback"


@dataclass
class Fault:
    """One way to misbehave, taken by the first `times` requests that match.

    Args:
        action (`str`): `"status"` answers with `status` and `headers`; `"drop"` closes the connection in the middle of
            the request body; `"lose_reply"` does the work, then closes without an answer; `"slow"` waits `seconds`
            first; `"race"` lets another author commit to the branch just before.
        method (`str`): HTTP method to match, empty for any.
        path (`str`): regular expression searched in the unquoted path.
    """

    action: str
    method: str = ""
    path: str = ""
    times: int = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and re.search(self.path, path) is not None


class LoopbackHub:
    """A context manager that serves a Hub from memory.

    Args:
        user (`str`): account behind every token that is not in `revoked`.
        orgs (`tuple[str, ...]`): further namespaces the account may write to.
        private_by_default (`bool`): what the account chose for new repos that do not say.
        lfs_suffixes (`tuple[str, ...]`): files sent through LFS. Clients with hf_xet ignore LFS unless
            `HF_HUB_DISABLE_XET=1`, so the default sends every file inside the commit.

    Example:
        >>> with LoopbackHub() as hub:
        ...     api = HfApi(endpoint=hub.endpoint, token="hf_loopback")
        ...     hub.repos["tester/model"].files("main")["README.md"]
    """

    def __init__(
        self,
        *,
        user: str = "tester",
        orgs: tuple[str, ...] = (),
        private_by_default: bool = False,
        lfs_suffixes: tuple[str, ...] = (),
    ):
        self.user, self.orgs = user, orgs
        self.private_by_default = private_by_default
        self.lfs_suffixes = lfs_suffixes
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.revoked: set[str] = set()
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.choose_fault: Callable[[str, str], Fault | None] | None = None
        self.lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.hub = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> LoopbackHub:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> LoopbackHub:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """Variables that point a fresh process, before it imports a Hub library, at this Hub."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_XET": "1",
        }

    def clear(self) -> None:
        """Forget repos, faults and requests, as between two tests."""
        with self.lock:
            self.repos.clear()
            self.blobs.clear()
            self.revoked.clear()
            self.requests.clear()
            self.faults.clear()
            self.choose_fault = None

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
            return self.choose_fault(method, path) if self.choose_fault else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    hub: LoopbackHub

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is everyday business here."""
