"""What can go wrong with a Hub, in one line each: which repo, what came, what to do. Never holds a token."""

from __future__ import annotations

import re

from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)


_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{4,}|(?<=Bearer )\S+")


class HubError(RuntimeError):
    """A push or a download that did not happen; the message names the repo and the remedy on one line."""


def without_tokens(text: str) -> str:
    """`text` with everything that looks like an access token blanked out."""
    return _TOKEN.sub("hf_***", text)


def status_of(error: BaseException) -> int | None:
    """HTTP status behind an error of `huggingface_hub`, also where a worker thread wrapped it."""
    while error is not None:
        if isinstance(error, HfHubHTTPError):
            return error.response.status_code
        error = error.__cause__  # type: ignore[assignment]
    return None


def explain(error: BaseException, repo_id: str) -> HubError:
    """The one-line `HubError` for an error that a retry cannot mend."""
    status = status_of(error)
    if isinstance(error, OfflineModeIsEnabled):
        reason = "offline mode is on; unset HF_HUB_OFFLINE to push"
    elif isinstance(error, LocalTokenNotFoundError):
        reason = "no access token was found; run `hf auth login` or set HF_TOKEN"
    elif isinstance(error, RepositoryNotFoundError):
        reason = "the repo does not exist, or this token may not see it; check the name and `hf auth whoami`"
    elif status == 401:
        reason = "the access token is missing, expired or revoked; run `hf auth login` or set HF_TOKEN to a valid one"
    elif status == 403:
        reason = "this token may not write there; use a token with write access, or a repo under your own name"
    elif status == 409 or status == 412:
        reason = "somebody else keeps committing to it; push again in a moment"
    elif status == 429:
        reason = (
            "the Hub limits the rate of this account; wait some minutes and push again (it goes on where it stopped)"
        )
    elif status is not None and status >= 500:
        reason = f"the Hub answered {status} again and again; push again later (it goes on where it stopped)"
    elif status is not None:
        reason = f"the Hub refused with {status}: {_first_line(error)}"
    else:
        reason = f"no connection to the Hub ({_first_line(error)}); push again (it goes on where it stopped)"
    return HubError(without_tokens(f"{repo_id}: {reason}."))


def _first_line(error: BaseException) -> str:
    server = getattr(error, "server_message", None)
    lines = [line.strip() for line in (server or str(error)).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
