"""The split that a table brings along: a column of parts, one of validation, one of folds.

In: columns. Out: `TableSplit`. Kept: nothing. Such a column is never learned, whether or not the recipe reads it.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from finetune.look.column_profile import ColumnProfile
from finetune.look.terms import FOLD, IS_PART, PART, VALIDATION, plain
from finetune.splits.columns import FALSE, PART_WORDS, TRUE

_TESTED = (
    "pred",
    "predict",
    "prediction",
    "holdout",
    "heldout",
    "hold",
    "held",
    "ood",
    "external",
    "blind",
    "independent",
)
"""Words that mean a tested part where another word means training."""
_NUMBERED = re.compile(r"(?P<word>[A-Za-z]*[ _-]?)(?P<number>\d+)(?:\.0)?")
_MOST_PARTS, _MOST_FOLDS, _MOST_UNKNOWN = 12, 20, 0.5
_Names = dict[str, list[str]]


class TableSplit(NamedTuple):
    """The split of a table."""

    roles: dict[str, tuple[str, str]]
    """Column -> (role, reason)."""
    by_part: dict[str, Any]
    """Settings of `[split]` by the column that says which part a row is in; empty without one."""
    by_fold: dict[str, Any]
    """Settings of `[split]` by the column of folds; empty without one."""


def own_split(columns: Sequence[ColumnProfile]) -> TableSplit:
    """The split of columns that are in an order of their own, whatever that of the table is."""
    parts = {column.name: of for column in columns if (of := _parts(column))}
    folds = {column.name: len(column.texts) for column in columns if column.name not in parts and _is_fold(column)}
    flags = [column.name for column in columns if column.name not in parts and _is_flag(column)]
    validations = [name for name in flags if VALIDATION.search(plain(name))]
    unsaid = [name for name in flags if PART.fullmatch(plain(name))]
    part = min(parts, key=lambda name: (not PART.fullmatch(plain(name)), "validation" not in parts[name]), default=None)
    fold = min(folds, key=lambda name: "random" in plain(name), default=None)
    of_part = parts.get(part or "", {})
    reasons = {name: f"another one; split.column = {name!r} reads it instead" for name in (*parts, *folds)}
    reasons |= dict.fromkeys(unsaid, "its two values do not say which rows train: name them in split.train")
    reasons |= dict.fromkeys(
        validations, "true in the training rows that validate" if part else "no rows train by name"
    )
    reasons |= {part: "; ".join(f"{name}: {', '.join(texts)}" for name, texts in of_part.items())} if part else {}
    reasons |= {fold: f"{folds[fold]} folds"} if fold else {}
    by_part: dict[str, Any] = {"by": "column", "column": part} if part else {}
    by_part |= {
        name: texts for name, texts in of_part.items() if not {text.casefold() for text in texts} <= {*PART_WORDS[name]}
    }
    by_part |= {"validation_column": validations[0]} if validations and part and "validation" not in of_part else {}
    by_fold = {"by": "group", "column": fold, "folds": folds[fold]} if fold else {}
    return TableSplit({name: ("part of a split", reason) for name, reason in reasons.items()}, by_part, by_fold)


def _parts(column: ColumnProfile) -> _Names | None:
    """Part -> texts of the column; None if it is no column of parts."""
    found: _Names = {}
    is_part = IS_PART.search(plain(column.name))
    if is_part and _is_flag(column):
        held_out = not is_part["part"].startswith("train")
        for text in column.texts:
            found.setdefault("test" if (text.casefold() in TRUE) == held_out else "train", []).append(text)
        return found
    if not 2 <= len(column.texts) <= _MOST_PARTS or column.numbers is not None:
        return None
    unknown = 0
    for text, count in zip(column.texts, column.counts.tolist(), strict=True):
        part = part_of(text)
        unknown += 0 if part else count
        found.setdefault(part or "unused", []).append(text)
    if "train" not in found or not {"test", "validation"} & found.keys():
        return None
    named = PART.search(plain(column.name)) is not None
    return found if unknown <= (_MOST_UNKNOWN if named else 0) * column.num_measured else None


def part_of(text: str) -> str | None:
    """The part that a text such as 'test2' or 'hold-out' names."""
    folded = text.casefold()
    words = {folded, *re.findall(r"[a-z]+", folded)}
    found = {part for part, usual in (*PART_WORDS.items(), ("test", _TESTED)) if words & set(usual)}
    return found.pop() if len(found) == 1 else None


def _is_fold(column: ColumnProfile) -> bool:
    """Whether a column numbers folds: 3 to 20 whole numbers without a gap, such as 'set_0', or words for folds."""
    name = plain(column.name)
    if not FOLD.search(name) or not 3 <= len(column.texts) <= min(_MOST_FOLDS, column.num_measured // 2):
        return False
    found = [_NUMBERED.fullmatch(text) for text in column.texts]
    if column.numbers is None and (None in found or len({each and each["word"] for each in found}) > 1):
        return "fold" in name or name.startswith("cv")
    numbers = sorted(float(each["number"]) if each else 0.5 for each in found)
    return numbers[0] in (0, 1) and numbers == [numbers[0] + each for each in range(len(numbers))]


def _is_flag(column: ColumnProfile) -> bool:
    folded = {text.casefold() for text in column.texts}
    return len(folded) == 2 and folded <= {*TRUE, *FALSE}
