"""The licence that a drafter inherits: the one its target's own card names. Asks once; not knowing is no error."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers.utils import logging

from .card_metadata import is_hub_id
from .card_regions import split_metadata
from .retry import httpx


logger = logging.get_logger(__name__)


def target_license(name: str | None, *, token: str | None = None) -> str | None:
    """
    Licence identifier of a local folder's or a Hub repo's card; `None` where there is no card, no licence or no answer.

    Args:
        name (`str`, *optional*): the target, as `config.target_name_or_path` has it.
    """
    if not name:
        return None
    path = Path(name) / "README.md"
    if is_hub_id(name):
        try:
            path = Path(hf_hub_download(name, "README.md", token=token))
        except (EntryNotFoundError, LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError) as error:
            logger.info(f"{name}: its licence is unknown ({type(error).__name__})")
            return None
    if not path.is_file():
        return None
    try:
        metadata, _ = split_metadata(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    found = metadata.get("license")
    return found if isinstance(found, str) else None
