"""Prompts on which a drafter trained on English tasks is of little use: random strings, and requests in other languages.

What `auto` must survive: it should notice, and cost next to nothing. Knows nothing of drafters.
"""

from __future__ import annotations

import random
import string

from benchmarks.prompts import Prompt, rendered


OTHER_LANGUAGES = (
    "Kirjoita lyhyt tarina vanhasta majakanvartijasta ja hänen kissastaan.",
    "Bana sonbaharda Ankara'da yapılabilecek beş şey anlat.",
    "Erkläre einem Kind, warum der Mond manchmal am Tag zu sehen ist.",
    "Escribe una carta a un vecino que toca la trompeta por la noche.",
    "Opisz zwyczajny dzień rybaka w małej wiosce nad morzem.",
    "Raconte comment on fait le pain dans ton village.",
    "Írj néhány sort arról, hogyan telt a nyári szünet a nagyszülőknél.",
    "Skriv et brev til en venn som har flyttet til en annen by.",
    "Spiega come si prepara una zuppa con quello che c'è in cucina.",
    "Vertel waarom fietsen in de regen ook leuk kan zijn.",
    "Napište krátkou báseň o řece, která zamrzla.",
    "Skrifaðu um veturinn og hestana í dalnum.",
)
RANDOM_WORDS = 24


def off_topic_prompts(tokenizer, count: int, *, seed: int = 0) -> list[Prompt]:
    """
    Args:
        count (`int`): prompts of each of the two sets; at most as many languages as there are.
        seed (`int`): of the random strings.

    Returns:
        `list[Prompt]`: of the sets `random strings` and `other languages`.
    """
    texts = {
        "random strings": [_random_text(random.Random(f"{seed}/{number}")) for number in range(count)],
        "other languages": list(OTHER_LANGUAGES[:count]),
    }
    return [
        Prompt(suite, number, tuple(rendered(text, tokenizer)))
        for suite, members in texts.items()
        for number, text in enumerate(members)
    ]


def _random_text(source: random.Random) -> str:
    letters = string.ascii_letters + string.digits
    return " ".join("".join(source.choices(letters, k=source.randint(3, 12))) for _ in range(RANDOM_WORDS))
