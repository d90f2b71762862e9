"""What kind of label a column holds: numbers, one of two classes, one of several, ordered ones, labels of residues.

In: a column, the lengths of its rows' proteins. Out: `InferredTask`: settings of a task, and the reason. Kept: nothing.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from finetune.labels.conditions import LIST_SEPARATORS
from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.tables.numbers import MISSING, is_number, molar, name_and_unit
from finetune.tasks.cells import NonEmptyCells, items, residue_labels
from finetune.tasks.classes import POLARITY

_MOST_CLASSES = 50
_MOST_OF_RESIDUES = 20
_MOST_STATES = 12
"""Letters of amino acids among the labels of residues from which on they are the residues themselves."""
_MOST_GRADES = 7
_LEAST_OF_A_CLASS = 3
"""Cells that a class has in the mean, in a column of classes."""
_DECADES = 10**1.5
"""Largest positive number over the smallest one from which on a logarithm is proposed."""
_SPAN = 3.0
"""The same where some numbers are bounds such as '>100': the spread at the top is not seen."""
_LINEAR = ("°C", "C", "K", "%")
"""Units of which no logarithm is learned."""
_CASES = 0.95
_SAMPLE = 300
_LEAST_LISTS, _SHARED = 0.05, 0.8
"""Share of cells of several labels from which on cells are lists; share of labels that stand in several lists."""
_NUMBERS = re.compile(r"[\[({]?\s*(?:\d+(?:\s*[,;|\s]\s*\d+)*)?\s*[\])}]?")
_NUMBER = re.compile(r"\d+")
_LEAST_NUMBERS, _LEAST_LONG = 20, 0.1
"""Distinct numbers of residues that are listed, and share of lists of more than two, at least."""
_LEAST_LABELLED, _LEAST_ALONG = 4, 8
"""Residues of a protein from which on as many labels, or digits, are those of its residues."""


@dataclass
class InferredTask:
    """A task as it is proposed."""

    columns: tuple[str, ...]
    settings: dict[str, Any]
    """Settings of `[[tasks]]`, without columns and name."""
    name: str
    reason: str


def infer_task(column: ColumnProfile, residues: NDArray[np.int64], *, is_named: bool = False) -> InferredTask | None:
    """The task that a column may be; None for one that holds nothing to learn.

    Args:
        column: the column.
        residues: (R,) residues of each row's protein, 0 for a row without one.
        is_named: whether the user named it; then it may have any number of classes.
    """
    if not column.num_measured:
        return None
    found = _of_residues(column, residues) or _of_residue_numbers(column, residues)
    if found is None:
        found = _of_numbers(column) if column.numbers is not None else _of_words(column, is_named)
    if found is not None and column.missing:
        found.settings["missing"] = [*found.settings.get("missing", MISSING), *column.missing]
        shown = ", ".join(map(repr, column.missing[:6]))
        found.reason += f"; {shown} {'is' if len(column.missing) == 1 else 'are'} taken for not measured"
    return found


def _of_residue_numbers(column: ColumnProfile, residues: NDArray[np.int64]) -> InferredTask | None:
    """Lists of rising numbers of residues, such as sites, of proteins of many lengths, over all of which they lie.

    Of variants of one protein such numbers may be those of their mutations.
    """
    cells = column.all.without(column.not_measured)
    lengths, sample = residues[cells.rows], [len(_NUMBER.findall(text)) > 2 for text in cells.texts[:_SAMPLE]]
    if sum(sample) < _LEAST_LONG * len(sample) or not all(map(_NUMBERS.fullmatch, cells.texts)) or not lengths.any():
        return None
    lists = [[*map(int, _NUMBER.findall(text))] for text in cells.texts]
    numbers = {number for each in lists for number in each}
    if len(numbers) < _LEAST_NUMBERS or not all(a < b for each in lists for a, b in pairwise(each)):
        return None
    first = int(0 not in numbers)
    last = np.array([max(each, default=0) for each in lists])[cells.which]
    are_one_length = np.bincount(lengths).max() > len(lengths) / 2
    if are_one_length or (last - first >= lengths)[lengths > 0].any() or 2 * last.max() < lengths.max():
        return None
    how = "from_1" if first else "from_0"
    why = "one of them is 0" if not first else "one is that of the last residue"
    why = why if not first or (last == lengths).any() else "none is 0, which is a guess"
    said = f"lists of numbers of residues, counted from {first}, as {why}; residues that are not listed are 0"
    return InferredTask(
        (column.name,), {"type": "binary", "level": "residue", "residue_numbers": how}, column.name, said
    )


def is_per_residue(column: ColumnProfile, residues: NDArray[np.int64]) -> bool:
    """Whether cells are digits, one for each residue, and so no numbers."""
    cells = column.all
    if not len(cells.rows) or not all(text.replace("-", "").isdigit() for text in cells.texts[:_SAMPLE]):
        return False
    return _are_as_many(cells, _lengths(cells), residues, _LEAST_ALONG)


def _lengths(cells: NonEmptyCells) -> NDArray[np.int64]:
    """(cells,) letters of each cell."""
    return np.array([len(text) for text in cells.texts], np.int64)[cells.which]


def _are_as_many(
    cells: NonEmptyCells, counts: NDArray[np.int64], residues: NDArray[np.int64], least: int = _LEAST_LABELLED
) -> bool:
    """Whether nearly all cells have as many labels as their protein residues, of proteins of at least some residues."""
    lengths = residues[cells.rows]
    usable = lengths >= least
    return bool(usable.any() and (counts[usable] == lengths[usable]).mean() >= _CASES)


def _of_residues(column: ColumnProfile, residues: NDArray[np.int64]) -> InferredTask | None:
    """Labels of residues: as many as the protein has, in nearly every cell."""
    if column.numbers is not None or not column.num_measured:
        return None
    cells, lengths = column.cells, _lengths(column.cells)
    if _are_as_many(cells, lengths, residues):
        letters = set("".join(cells.texts)) - {"-"}
        if len({*STANDARD_RESIDUES} & letters) > _MOST_STATES:
            return None
        found = _of_residue_classes(column, "letter", letters)
        of_rows = residues[cells.rows]
        others = {cells.texts[at] for at in cells.which[(of_rows >= _LEAST_LABELLED) & (lengths != of_rows)].tolist()}
        if found and others:
            found.settings["missing"] = [*MISSING, *sorted(others)]
            found.reason += f"; texts of another length than their protein are left out: {len(others)}"
        return found
    if not any(sign in cells.texts[0] for sign in " ;,"):
        return None
    labels, counts = residue_labels(cells, of_numbers=True)
    if not _are_as_many(cells, counts, residues):
        return None
    numeric = [text for text in labels.texts if is_number(text)]
    kinds = set(labels.texts) - {"", "-"}
    are_digits = len(kinds) > 1 and kinds <= {*map(str, range(10))}
    if are_digits or len(numeric) < len(labels.texts) / 2:
        return _of_residue_classes(column, "label", kinds)
    return InferredTask(
        (column.name,), {"type": "regression", "level": "residue"}, column.name, "a number for each residue"
    )


def _of_residue_classes(column: ColumnProfile, word: str, kinds: set[str]) -> InferredTask | None:
    if not 2 <= len(kinds) <= _MOST_OF_RESIDUES:
        return None
    kind = "binary" if kinds == {"0", "1"} else "multiclass"
    said = f"a {word} for each residue, {len(kinds)} kinds: {' '.join(sorted(kinds))}"
    return InferredTask((column.name,), {"type": kind, "level": "residue"}, column.name, said)


def _of_numbers(column: ColumnProfile) -> InferredTask | None:
    assert column.numbers is not None
    values = column.values[~np.isnan(column.values)]
    distinct = np.unique(values)
    if len(distinct) < 2:
        return None
    name, unit = name_and_unit(column.name)
    if set(distinct.tolist()) == {0.0, 1.0} and not column.num_censored:
        said = f"0 and 1, {np.mean(values):.0%} of them 1"
        return InferredTask((column.name,), {"type": "binary"}, name, said)
    if distinct.tolist() in ([-1.0, 1.0], [1.0, 2.0]) and not column.num_censored and not column.numbers.unit:
        texts = sorted(column.texts, key=float)
        if len(texts) == 2:
            said = f"{texts[0]} and {texts[1]}, {np.mean(values > 0):.0%} of them {texts[1]}"
            return InferredTask((column.name,), {"type": "binary", "classes": texts}, name, said)
    grades = not column.num_censored and not column.numbers.unit and (distinct == np.round(distinct)).all()
    consecutive = grades and distinct[-1] - distinct[0] == len(distinct) - 1
    few = 3 <= len(distinct) <= _MOST_GRADES and len(values) >= _LEAST_OF_A_CLASS * len(distinct)
    if consecutive and few and distinct[0] in (0.0, 1.0) and all(text.isdigit() for text in column.texts):
        said = f"whole numbers from {distinct[0]:g} to {distinct[-1]:g}: grades, whose order counts, which is a guess"
        return InferredTask((column.name,), {"type": "ordinal"}, name, said)
    settings: dict[str, Any] = {"type": "regression"}
    unit = column.numbers.unit or unit
    said = f"numbers, {distinct[0]:.4g} to {distinct[-1]:.4g}{f' {unit}' if unit else ''}"
    if unit:
        settings["unit"] = unit
    if column.num_censored:
        bound = int(np.flatnonzero(column.censoring)[0])
        example = f"{'>' if column.censoring[bound] > 0 else '<'}{column.values[bound]:.4g}"
        said += f", {column.num_censored:,} of them bounds such as '{example}'"
    has_top = bool((column.censoring > 0).any() and distinct[-1] >= _SPAN * distinct[0])
    is_log = terms.LINEAR.search(terms.plain(name)) is not None or unit in _LINEAR or re.search("%|percent", name, re.I)
    if distinct[0] > 0 and not is_log and (has_top or distinct[-1] >= _DECADES * distinct[0]):
        settings["transform"] = "p" if molar(unit) else "log10"
        what = "-log10 of mol/l" if molar(unit) else "their logarithm"
        said += f"; over {np.log10(distinct[-1] / distinct[0]):.1f} decades and positive"
        said += f"{', with a bound at the top' * has_top}, so that {what} is learned"
    said += "; a comma is the decimal sign" if column.numbers.decimal == "," else ""
    return InferredTask((column.name,), settings, name, said)


def _of_lists(column: ColumnProfile, is_named: bool) -> InferredTask | None:
    """Lists of labels, such as 'A; B': labels that stand in several cells, in other company, unless it is named."""
    listed = [set(filter(None, items(text, LIST_SEPARATORS))) for text in column.texts]
    counts = column.counts.tolist()
    tally, of_texts = Counter[str](), Counter[str](label for labels in listed for label in labels)
    for labels, count in zip(listed, counts, strict=True):
        tally.update(dict.fromkeys(labels, count))
    several = sum(count for labels, count in zip(listed, counts, strict=True) if len(labels) > 1)
    again = sum(number > 1 for number in of_texts.values())
    if several < _LEAST_LISTS * sum(counts) or len(tally) < 2 or any(len(label) > 60 for label in tally):
        return None
    are_many = tally.total() < _LEAST_OF_A_CLASS * len(tally)
    if not is_named and (are_many or again < _SHARED * len(tally)):
        return None
    if all(map(is_number, tally)):
        return None
    shown = ", ".join(f"{label} {count / sum(counts):.0%}" for label, count in _ordered(tally)[:5])
    said = f"lists of {len(tally)} labels, each of which is one yes or no: {shown}{', ...' if len(tally) > 5 else ''}"
    return InferredTask((column.name,), {"type": "multilabel", "columns_are": "lists"}, column.name, said)


def _of_words(column: ColumnProfile, is_named: bool) -> InferredTask | None:
    if (lists := _of_lists(column, is_named)) is not None:
        return lists
    texts, counts = column.texts, column.counts
    folded: dict[str, int] = {}
    for text, count in zip(texts, counts.tolist(), strict=True):
        folded[text.casefold()] = folded.get(text.casefold(), 0) + count
    total, name = int(counts.sum()), column.name
    if len(folded) < 2 or (not is_named and len(folded) > _MOST_CLASSES) or total < 1.5 * len(folded):
        return None
    if (not is_named and any(len(text) > 60 for text in texts)) or all(is_number(text) for text in texts):
        return None
    shown = ", ".join(f"{text} {count / total:.0%}" for text, count in _ordered(folded)[:5])
    more = f" and {len(folded) - 5} more" if len(folded) > 5 else ""
    if set(folded) == {"+", "-"} or (set(folded) <= POLARITY.keys() and len({POLARITY[text] for text in folded}) == 2):
        return InferredTask((column.name,), {"type": "binary"}, name, f"yes or no: {shown}{more}")
    scale = next((scale for scale in terms.SCALES if set(folded) <= set(scale)), None)
    if scale is not None and len(folded) > 2 and len(texts) == len(folded):
        order = sorted(texts, key=lambda text: scale.index(text.casefold()))
        return InferredTask(
            (column.name,), {"type": "ordinal", "classes": order}, name, f"grades in an order: {shown}{more}"
        )
    if not is_named and total < _LEAST_OF_A_CLASS * len(folded) and len(folded) > 2:
        return None
    if len(folded) == 2:
        rare, often = (next(text for text in texts if text.casefold() == each) for each, _ in _ordered(folded)[::-1])
        why = "it is rarer" if len({*folded.values()}) > 1 else "it is the last in the alphabet"
        said = f"two classes: {shown}; {rare!r} is called positive, as {why}, which is a guess"
        return InferredTask((column.name,), {"type": "binary", "classes": [often, rare]}, name, said)
    said = f"{len(texts)} classes: {shown}{more}"
    said += f"; the smallest class has {min(folded.values())}" if len(folded) > _MOST_CLASSES else ""
    if len(texts) != len(folded):
        said += "; some differ only in upper and lower case and count as two: correct the table if they are one"
    return InferredTask((column.name,), {"type": "multiclass"}, name, said)


def _ordered(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
