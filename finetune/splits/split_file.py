"""split.csv: the part, fold and group of each record by its id, written into runs and bundles and taken back.

In: `SplitParts`, or a file. Out: a file, or `SplitParts`. Kept: the file, with the columns `COLUMNS`.

An id that is the number of a row says nothing of another table, so that records are then found by their digests.
"""

import csv
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.splits.columns import PART_WORDS
from finetune.splits.parts import (
    NAMES,
    NO_FOLD,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    SplitParts,
    in_order_of_first,
    parts_of,
)
from finetune.tables.table import are_row_numbers
from zymogen.files.durable import write_csv
from zymogen.settings.section import unknown_word

FILE = "split.csv"
DIGEST = "sequence_digest"
COLUMNS = ("id", "part", "fold", "group", DIGEST, "cluster")
_PARTS = {
    word: part for name, part in zip(NAMES, (TRAIN, VALIDATION, TEST, UNUSED), strict=True) for word in PART_WORDS[name]
}
_SHOWN = 3


def write(path: Path, ids: Sequence[str], parts: SplitParts, clusters: NDArray[np.uint64] | None = None) -> None:
    """Write the parts of records; an empty cell where there is no fold.

    Args:
        path: the file, in an existing folder; it is replaced.
        ids: (N,) id of each record, all distinct.
        parts: their parts.
        clusters: (N,) what an interval leaves out together; the column is empty without it.

    Raises:
        ValueError: the file cannot be written.
    """
    of_records = (parts.part.tolist(), parts.fold.tolist(), parts.group.tolist(), digest_texts(parts.digests))
    shown = [""] * len(ids) if clusters is None else digest_texts(clusters)
    lines = (
        (name, NAMES[part], "" if fold == NO_FOLD else fold, *rest)
        for name, part, fold, *rest in zip(ids, *of_records, shown, strict=True)
    )
    write_csv(path, [COLUMNS, *lines], "write elsewhere")


def read(path: Path, ids: Sequence[str], digests: NDArray[np.uint64]) -> tuple[SplitParts, list[str]]:
    """The parts of records from a file that was written here or elsewhere; fold, group and digest may be missing.

    Records are found by their ids, and a digest in the file must be the record's. Where ids are numbers of rows, of the
    table or of the file, records are found by their digests alone. Groups are any words. Lines of other records are
    ignored and counted, so that the split of a larger table can be used.

    Args:
        path: a CSV with a header; it may have further columns.
        ids: (N,) id of each record, all distinct.
        digests: (N,) digest of each record.

    Returns:
        Parts, and notes.

    Raises:
        ValueError: a record is not listed, or listed twice with different parts; an id is of another sequence there;
            ids are numbers of rows and the file has no digests; a value is no part or fold; one group is on two sides.
    """
    lines, keys = lines_of(path), list(ids)
    if are_row_numbers(ids) or are_row_numbers(lines):
        if not all(line.digest for line in lines.values()):
            raise ValueError(
                f"{path} has no {DIGEST} for every line, and the ids are numbers of rows, which change with the "
                "table: name a column of ids with data.id in both, or give the split.csv of a run"
            )
        lines, keys = {line.digest: line for line in lines.values()}, digest_texts(digests)
    missing = [name for name, key in zip(ids, keys, strict=True) if key not in lines]
    if missing:
        near = difflib.get_close_matches(missing[0], list(lines)[:10_000], 1)
        nearest = f"; the nearest is {near[0]!r}" if near else ""
        raise ValueError(
            f"{path} has no line for {len(missing):,} of {len(ids):,} records, such as "
            f"{', '.join(map(repr, missing[:_SHOWN]))}{nearest}; add them ('unused' is a part), or give the file of "
            "this table"
        )
    notes = [f"{len(lines) - len(ids):,} lines of {path} are of other tables"] if len(lines) > len(ids) else []
    found = [lines[key] for key in keys]
    for name, line, digest in zip(ids, found, digest_texts(digests), strict=True):
        if line.digest not in ("", digest):
            raise ValueError(
                f"{path}: {name!r} has another sequence there ({DIGEST} {line.digest}, in the table {digest}); give "
                "the file of this table, or correct the ids"
            )
    part, fold = np.array([line.part for line in found]), np.array([line.fold for line in found])
    numbers: dict[str, int] = {}
    # A record without a group is on its own.
    words = [line.group or f"\0{name}" for line, name in zip(found, ids, strict=True)]
    group = in_order_of_first(np.array([numbers.setdefault(word, len(numbers)) for word in words]))
    try:
        return parts_of(digests, part, group, fold), notes
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class SplitFileRow(NamedTuple):
    """A line of a file."""

    part: int
    fold: int
    group: str
    """Empty where there is none."""
    digest: str
    """The digest of its sequence; empty where there is none."""
    cluster: str
    """What an interval leaves out together with it; empty where there is none."""


def lines_of(path: Path) -> dict[str, SplitFileRow]:
    """Id -> line of a file.

    Raises:
        ValueError: as for `read`.
    """
    found: dict[str, SplitFileRow] = {}
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
                rest = ((line.get(column) or "").strip() for column in COLUMNS[3:])
                if found.setdefault(name, SplitFileRow(part, fold, *rest))[:2] != (part, fold):
                    raise ValueError(f"{where}: {name!r} was listed before with another part; leave one line out")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; check split.file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a CSV in UTF-8: {error}; write it again") from None
    return found


def digest_texts(digests: NDArray[np.uint64]) -> list[str]:
    """Digests as they stand in a file."""
    return [f"{digest:016x}" for digest in digests.tolist()]


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
        raise ValueError(f"{where}: {unknown_word('the part', text, NAMES)}")
    return _PARTS[text.lower()]
