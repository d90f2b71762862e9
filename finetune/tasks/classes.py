"""Classes: their names, their order, and the positive one of two; canonical SMILES of molecules.

In: the distinct texts of a task's columns. Out: names of classes, and the index of each text; canonical SMILES. Kept:
nothing. rdkit (https://rdkit.org) is imported where it is installed; without it only equal texts are one molecule.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress

from finetune.tables.numbers import number_of
from finetune.tasks.settings import TaskSettings
from zymogen.settings.section import listed

_SAMPLE, _MOST_OTHERS = 50, 0.5


OPPOSITES = (
    *(("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("0", "1"), ("-", "+"), ("inactive", "active")),
    *(("negative", "positive"), ("neg", "pos"), ("non-binder", "binder"), ("insoluble", "soluble"), ("off", "on")),
    *(("nein", "ja"), ("non", "oui")),
)
"""Negative and positive words that need no explanation, in any case; numbers that equal 0 and 1 are '0' and '1'."""
POLARITY = {word: index for pair in OPPOSITES for index, word in enumerate(pair)}
"""Word of `OPPOSITES` -> 1 for a positive one, 0 for a negative one."""
_SHOWN = 8


def minus_is_negative(settings: TaskSettings, texts: Collection[str]) -> bool:
    """Whether ``-`` is the negative class of these texts, though it means 'missing' elsewhere.

    It is if it stands beside ``+`` in a task of two classes, and nothing else does.
    """
    folded = {text.casefold() for text in settings.missing}
    rest = {text for text in texts if text == "-" or text.casefold() not in folded}
    return settings.kind.is_binary and not settings.classes and rest == {"+", "-"}


def classes_of(settings: TaskSettings, texts: Sequence[str]) -> tuple[str, ...]:
    """Names of a task's classes in the order of their indices.

    Of two classes the second one is positive. Classes that a recipe does not name are those of the table: of two, by
    the words of `OPPOSITES`; numbers in their order; other words in alphabetical order, unless the task is ordinal.

    Args:
        settings: of a task whose labels are classes.
        texts: distinct texts of all its columns, without those that mean 'missing'.

    Raises:
        ValueError: it cannot be known which of two is positive, or in what order classes are.
    """
    if settings.classes:
        return settings.classes
    if settings.kind.is_binary:
        return _two(settings, texts)
    numbers = [number_of(text) for text in texts]
    if all(number is not None for number in numbers):
        first = dict(zip(reversed(numbers), reversed(texts), strict=True))  # '1' and '1.0' are one class
        return tuple(first[number] for number in sorted(first, key=lambda number: number or 0.0))
    if settings.kind.is_ordered:
        raise ValueError(
            f"tasks: the classes of {settings.name!r} are {_shown(texts)}, whose order is not known; name them from "
            "the lowest to the highest, as in classes = ['low', 'medium', 'high']"
        )
    return tuple(sorted(texts))


def index_of(text: str, classes: Sequence[str], settings: TaskSettings) -> int | None:
    """The index of the class that a text means; None if it means none of them."""
    if text in classes:
        return classes.index(text)
    is_binary = settings.kind.is_binary
    if is_binary and not settings.classes:
        return POLARITY.get(_word(text))
    number = number_of(text)
    if number is not None:
        return next((index for index, name in enumerate(classes) if number_of(name) == number), None)
    folded = [name.casefold() for name in classes]
    return folded.index(text.casefold()) if is_binary and text.casefold() in folded else None


def _two(settings: TaskSettings, texts: Sequence[str]) -> tuple[str, str]:
    """The negative and the positive one of words that are `OPPOSITES`, as they are written first."""
    if any(_word(text) not in POLARITY for text in texts):
        raise ValueError(
            f"tasks: {settings.name!r} is of type {settings.type} and its labels are {_shown(texts)}; say which one is "
            "positive by naming it second, as in classes = ['unstable', 'stable'], or, for more than two classes, "
            "choose type = 'multiclass'"
        )
    word = _word(texts[0]) if texts else "1"
    negative, positive = next(pair for pair in OPPOSITES if word in pair)
    names = [next((text for text in texts if _word(text) == word), word) for word in (negative, positive)]
    return names[0], names[1]


def _word(text: str) -> str:
    """The word of `OPPOSITES` that a text may be."""
    number = number_of(text)
    return str(int(number)) if number is not None and number in (0, 1) else text.casefold()


def _shown(texts: Sequence[str]) -> str:
    return listed([*map(repr, texts)], _SHOWN)


_SMILES_NAME = re.compile(r"smiles", re.I)


_SMILES = re.compile(r"(?=.*[=#()\[\]@])(?:Cl|Br|[BCFINOPSbcnops*]|\[[A-Za-z0-9@+\-:*#]+\]|[0-9+\-()=#$/\\%.:~])+")
"""A molecule that has a bond, a branch or a bracket: elements of the organic subset, others in brackets."""


def is_molecules(column: str, texts: Sequence[str]) -> bool:
    """Whether a column holds molecules: by its name, or because half of its first texts can be nothing else."""
    sample = texts[:_SAMPLE]
    return bool(_SMILES_NAME.search(column)) or (
        bool(sample) and sum(map(bool, map(_SMILES.fullmatch, sample))) > _MOST_OTHERS * len(sample)
    )


def canonical_smiles(texts: Sequence[str]) -> list[str | None]:
    """The canonical SMILES of each text; None for one that is no molecule, and for all of them without rdkit."""
    with suppress(ImportError):
        from rdkit import Chem
        from rdkit.rdBase import BlockLogs

        with BlockLogs():  # rdkit writes a line for each text that is no molecule
            molecules = [Chem.MolFromSmiles(text) if text else None for text in texts]
        return [Chem.MolToSmiles(each) if each is not None else None for each in molecules]
    return [None] * len(texts)
