"""split.csv: the part, fold and group of each record by its id, written into runs and bundles and taken back.

In: `Parts`, or a file. Out: a file, or `Parts`. Kept: the file, with the columns id, part, fold, group.
"""

import csv
import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.durable import replaced
from finetune.splits.columns import USUAL
from finetune.splits.parts import NAMES, NO_FOLD, TEST, TRAIN, UNUSED, VALIDATION, Parts, in_order_of_first, parts_of

FILE = "split.csv"
COLUMNS = ("id", "part", "fold", "group")
_PARTS = {
    word: part for name, part in zip(NAMES, (TRAIN, VALIDATION, TEST, UNUSED), strict=True) for word in USUAL[name]
}
_SHOWN = 3


def write(path: Path, ids: Sequence[str], parts: Parts) -> None:
    """Write the parts of records; an empty cell where there is no fold.

    Args:
        path: the file, in an existing folder; it is replaced.
        ids: (N,) id of each record.
        parts: their parts.

    Raises:
        ValueError: two records have one id; the file cannot be written.
    """
    require_distinct(ids)
    with replaced(path, "write elsewhere") as new, new.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        of_records = (parts.part.tolist(), parts.fold.tolist(), parts.group.tolist())
        for name, part, fold, group in zip(ids, *of_records, strict=True):
            writer.writerow((name, NAMES[part], "" if fold == NO_FOLD else fold, group))


def read(path: Path, ids: Sequence[str], digests: NDArray[np.uint64]) -> tuple[Parts, list[str]]:
    """The parts of records from a file that was written here or elsewhere; fold and group may be missing.

    Groups are any words. Lines of other ids are ignored and counted, so that the split of a larger table can be used.

    Args:
        path: a CSV with a header; it may have further columns.
        ids: (N,) id of each record.
        digests: (N,) digest of each record.

    Returns:
        Parts, and notes.

    Raises:
        ValueError: a record is not listed, or listed twice with different parts; a value is no part or fold; one group
            is on two sides.
    """
    require_distinct(ids)
    lines = _lines(path)
    missing = [name for name in ids if name not in lines]
    if missing:
        near = difflib.get_close_matches(missing[0], list(lines)[:10_000], 1)
        nearest = f"; the nearest is {near[0]!r}" if near else ""
        raise ValueError(
            f"{path} has no line for {len(missing):,} of {len(ids):,} records, such as "
            f"{', '.join(map(repr, missing[:_SHOWN]))}{nearest}; add them ('unused' is a part), or give the file of "
            "this table"
        )
    notes = [f"{len(lines) - len(ids):,} lines of {path} are of other tables"] if len(lines) > len(ids) else []
    found = [lines[name] for name in ids]
    part, fold = np.array([line[0] for line in found]), np.array([line[1] for line in found])
    numbers: dict[str, int] = {}
    # A record without a group is on its own.
    words = [line[2] or f"\0{name}" for line, name in zip(found, ids, strict=True)]
    group = in_order_of_first(np.array([numbers.setdefault(word, len(numbers)) for word in words]))
    try:
        return parts_of(digests, part, group, fold), notes
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def part_of_ids(path: Path) -> dict[str, int]:
    """Id -> part of every line of a file.

    Raises:
        ValueError: as for `read`.
    """
    return {name: part for name, (part, _, _) in _lines(path).items()}


def group_of_ids(path: Path) -> dict[str, str]:
    """Id -> group of every line of a file; empty where there is none.

    Raises:
        ValueError: as for `read`.
    """
    return {name: group for name, (_, _, group) in _lines(path).items()}


def require_distinct(ids: Sequence[str]) -> None:
    """Refuse ids that are used twice.

    Raises:
        ValueError: naming the first of them.
    """
    seen: dict[str, int] = {}
    for record, name in enumerate(ids):
        if seen.setdefault(name, record) != record:
            raise ValueError(
                f"records {seen[name]} and {record} have one id, {name!r}; give each record an id of its own"
            )


def _lines(path: Path) -> dict[str, tuple[int, int, str]]:
    """Part, fold and group by id."""
    found: dict[str, tuple[int, int, str]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            if "id" not in columns or not {"part", "fold"} & set(columns):
                raise ValueError(f"{path} has the columns {', '.join(columns)}; it needs id, and part or fold")
            for line in reader:
                name, where = (line["id"] or "").strip(), f"{path}: line {reader.line_num}"
                fold = _fold((line.get("fold") or "").strip(), where)
                part = _part((line.get("part") or "").strip(), where, fold)
                if found.setdefault(name, (part, fold, (line.get("group") or "").strip()))[:2] != (part, fold):
                    raise ValueError(f"{where}: {name!r} was listed before with another part; leave one line out")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; check split.file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a CSV in UTF-8: {error}; write it again") from None
    return found


def _fold(text: str, where: str) -> int:
    if not text:
        return NO_FOLD
    if not text.isascii() or not text.isdigit() or int(text) > 32_000:
        raise ValueError(f"{where}: the fold is {text!r}; it must be a whole number from 0, or empty")
    return int(text)


def _part(text: str, where: str, fold: int) -> int:
    if not text:
        return UNUSED if fold == NO_FOLD else TRAIN
    if text.lower() not in _PARTS:
        allowed = ", ".join(map(repr, NAMES))
        near = difflib.get_close_matches(text.lower(), _PARTS, 1)
        nearest = f"the nearest is {near[0]!r}, " if near else ""
        raise ValueError(f"{where}: the part is {text!r}; {nearest}allowed are {allowed}")
    return _PARTS[text.lower()]
