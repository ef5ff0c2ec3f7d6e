"""Repeats a step while the Hub is only temporarily unwell. Knows nothing of what the step does.

The client already repeats single requests; this repeats whole steps, so that each attempt looks at the repo afresh: a
commit whose answer was lost is then found done, not made twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)
from transformers.utils import logging

from .errors import HubError, explain, status_of


try:
    import httpx2 as httpx  # huggingface_hub >= 2
except ImportError:
    import httpx  # type: ignore[no-redef]

logger = logging.get_logger(__name__)
T = TypeVar("T")

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
# 409 and 412: another commit came first; the next attempt starts from it.
TEMPORARY_STATUS = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
# RuntimeError: what the client's upload threads wrap their errors in.
_HUB_FAILURES = (
    httpx.HTTPError,
    RuntimeError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)


def is_temporary(error: BaseException) -> bool:
    """Whether the same step may succeed in a moment."""
    status = status_of(error)
    if status is not None:
        return status in TEMPORARY_STATUS
    while error is not None:
        if isinstance(error, (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)):
            return True
        error = error.__cause__  # type: ignore[assignment]
    return False


def retry_after(error: BaseException) -> float | None:
    """Seconds the Hub asked to wait (`Retry-After`), where it did."""
    while error is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__  # type: ignore[assignment]
    value = "" if error is None else error.response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def with_retries(step: Callable[[], T], repo_id: str) -> T:
    """
    Run `step` until it succeeds, with growing pauses.

    Args:
        step (`Callable`): safe to repeat: it looks at the repo's state each time.
        repo_id (`str`): named in the error.

    Raises:
        HubError: the failure is permanent, or `ATTEMPTS` were not enough.
    """
    wait = FIRST_WAIT_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return step()
        except HubError:
            raise
        except _HUB_FAILURES as error:
            if attempt == ATTEMPTS or not is_temporary(error):
                raise explain(error, repo_id) from error
            pause = min(max(wait, retry_after(error) or 0.0), LONGEST_WAIT_SECONDS)
            logger.warning(f"{repo_id}: attempt {attempt} of {ATTEMPTS} failed, the next is in {pause:g} s")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    raise AssertionError("the last attempt either returns or raises")
