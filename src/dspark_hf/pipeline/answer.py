"""One prompt answered by a target with its drafter, streamed to standard output or returned.

It knows nothing of files beyond the two models.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TextStreamer

from dspark_hf.training.rendering import Renderer

from .standalone import open_pair


def answer_prompt(
    target: str,
    drafter: str,
    prompt: str,
    *,
    raw: bool = False,
    thinking: bool | None = None,
    policy: str = "auto",
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int = 256,
    seed: int = 0,
    stream: bool = True,
) -> dict[str, Any]:
    """
    Args:
        target, drafter (`str`): folders or repos.
        prompt (`str`): a chat turn, or with `raw` text to continue.
        thinking (`bool`, *optional*): mode of the chat template.
        policy (`str`): how much of a draft is verified.
        temperature (`float`): 0 is greedy.
        top_p (`float`), max_new_tokens (`int`), seed (`int`): of sampling.
        stream (`bool`): print the text as it comes.

    Returns:
        `dict`: `text` and `stats`, see [`GenerationStats.summary`].

    Raises:
        ValueError: an empty prompt, an unknown policy, or a drafter that does not fit.
    """
    if not prompt.strip():
        raise ValueError("The prompt is empty.")
    opened, model = open_pair(drafter, target)
    model.set_policy(policy)
    tokenizer, device = opened.tokenizer, opened.model.device
    if raw:
        ids = tokenizer(prompt)["input_ids"]
    else:
        ids = Renderer(tokenizer, thinking=thinking).prompt_ids([{"role": "user", "content": prompt}])
    ids_1L = torch.tensor([ids], device=device)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    torch.manual_seed(seed)
    output = opened.model.generate(
        ids_1L,
        attention_mask=torch.ones_like(ids_1L),
        assistant_model=model,
        max_new_tokens=max_new_tokens,
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True) if stream else None,
        **(sampling if temperature > 0 else {"do_sample": False}),
    )
    text = tokenizer.decode(output[0, ids_1L.shape[1] :], skip_special_tokens=True)
    return {"text": text, "stats": model.last_generation.summary()}
