"""The numbers on a model card, each of which must stand in a file."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from huggingface_hub import ModelCard

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
_OF_THE_WORDS = (
    *("95 %", "15 %", "80/10/10", "ESM-2", "0.5 everywhere", "Lin et al. (2023)", "Science 379", "ESM Team (2024)"),
    *("bfloat16", "0.5 by chance", "0.0 by chance", "0 by chance"),
)
"""Numbers that belong to a card's own sentences, and to names."""


def numbers_of(content: Any, forms: Callable[[Any], set[str]]) -> Iterator[str]:
    """All numbers of a JSON file, in the forms that a card may have, and those within its texts."""
    if isinstance(content, (dict, list)):
        for each in content.values() if isinstance(content, dict) else content:
            yield from numbers_of(each, forms)
    elif isinstance(content, str):
        yield from NUMBER.findall(content.replace(",", " "))
    elif isinstance(content, (int, float)):
        yield from {str(content), f"{content:.0%}".rstrip("%"), f"{content:,}"} | forms(content)


def unknown_numbers(card: str, known: set[str]) -> list[str]:
    """The numbers of a card's tables and sentences that are not known; code and alternative texts have none."""
    body = ModelCard(card).text
    for left_out in (r"```.*?```", r"`[^`]*`", r"!\[[^]]*\]\([^)]*\)", r"<!--.*?-->", *map(re.escape, _OF_THE_WORDS)):
        body = re.sub(left_out, "", body, flags=re.S)
    numbers, plain = NUMBER.findall(body.replace("\\", "")), {number.replace(",", "") for number in known}
    assert len(numbers) > 5
    return [number for number in numbers if number.replace(",", "") not in plain]
