"""Chooses the id that stands for "not drafted yet" in a block: a row of the target's embedding that no text uses.

Knows tokenizers by three public properties; knows nothing of models.
"""

from __future__ import annotations

import re
from typing import Any


# names that vocabularies give to rows kept free
_RESERVED = re.compile(
    r"^<?[<\[|(_]*\|?(reserved|unused|extra|placeholder|dummy|pad_to)[ _\-a-z]*(token)?[_\-]?\d*\|?[>\])|]*$",
    re.IGNORECASE,
)


def choose_mask_token_id(tokenizer: Any, vocab_size: int) -> int:
    """
    A mask token for a new drafter.

    In this order: the first row of the embedding that the tokenizer does not use, the tokenizer's own mask token, a token
    that the vocabulary keeps in reserve.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): the target's.
        vocab_size (`int`): rows of the target's embedding. The embedding is frozen and shared, so an id beyond it cannot
            be used: tokens added to the tokenizer alone have no row.

    Raises:
        ValueError: no such id; says how to go on.
    """
    vocabulary = tokenizer.get_vocab()
    first_free = max(vocabulary.values(), default=-1) + 1
    if first_free < vocab_size:
        return first_free
    for candidate in (tokenizer.mask_token_id, vocabulary.get("<mask>"), vocabulary.get("[MASK]")):
        if candidate is not None and candidate < vocab_size:
            return candidate
    reserved = sorted(index for token, index in vocabulary.items() if _RESERVED.match(token) and index < vocab_size)
    if reserved:
        return reserved[-1]
    raise ValueError(
        f"no free mask token: the tokenizer uses all {vocab_size} rows of the target's embedding and names none of them "
        "reserved; choose mask_token_id yourself, a token that hardly ever occurs"
    )


def check_mask_token_id(tokenizer: Any, vocab_size: int, mask_token_id: int) -> str | None:
    """
    Whether an id can serve as mask token.

    Returns:
        `str`: a doubt in plain words (an ordinary word, a stop token), or `None`.

    Raises:
        ValueError: the id has no row in the target's embedding.
    """
    if not 0 <= mask_token_id < vocab_size:
        raise ValueError(
            f"mask_token_id must be in [0, {vocab_size - 1}], a row of the target's embedding; got {mask_token_id} (a token "
            "added to the tokenizer alone is neither trained nor shipped)"
        )
    token = {index: token for token, index in tokenizer.get_vocab().items()}.get(mask_token_id)
    if (
        token is None
        or mask_token_id == tokenizer.mask_token_id
        or _RESERVED.match(token)
        or token in ("<mask>", "[MASK]")
    ):
        return None
    if mask_token_id in tokenizer.all_special_ids:
        return f"mask_token_id {mask_token_id} is the special token {token!r}, which the text itself uses"
    return f"mask_token_id {mask_token_id} is the ordinary token {token!r}, which the text itself uses"
