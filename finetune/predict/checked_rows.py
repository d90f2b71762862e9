"""The rows that are predicted: a table in parts, all of it checked before the first one is predicted.

In: a location, and the settings that say where its proteins are. Out: parts with the proteins of their rows; sentences
about the table. Kept: nothing; memory holds one part. Whatever is wrong with the last row is said before hours of
predictions, not after.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data.order.plan import SPECIAL_TOKENS
from finetune.tables.mutations import numbering_of
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.read import TableParts
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table


class CheckedRows(NamedTuple):
    """A table of which every row can be predicted, or is left out."""

    columns: list[str]
    num_rows: int
    said: tuple[str, ...]
    """What was decided, for the user: sentences without the table's name."""
    parts: Iterator[tuple[Table, TableProteins]]
    """Each part with its proteins, read once; a row that is left out has the record -1."""


def checked_rows(parts: TableParts, settings: TableSettings, crop_tokens: int) -> CheckedRows:
    """Read a table once, or twice where it has mutations, and check every row.

    Args:
        parts: the table.
        settings: where its proteins are.
        crop_tokens: longest document, begin and end included.

    Raises:
        ValueError: as for `finetune.tables.proteins.proteins_of`.
    """
    said, numbering = [*parts.said], None
    if settings.mutation:
        numbering, more = numbering_of(parts, settings)
        said += more
    most = crop_tokens - SPECIAL_TOKENS
    crop = None if settings.too_long == "refuse" or len(settings.sequence) > 1 else crop_tokens
    num_rows = num_without = num_long = longest = 0
    first_without = first_long = row_of_longest = ""
    for part in parts:
        proteins = proteins_of(part, settings, crop, is_part=True, numbering=numbering)
        without = np.flatnonzero(proteins.record_of_row < 0)
        if len(without):
            first_without = first_without or _place(part, int(without[0]))
        long = np.flatnonzero(proteins.whole_residues > most)
        if len(long):
            first_long = first_long or _place(part, int(long[0]))
            at = int(proteins.whole_residues.argmax())
            if proteins.whole_residues[at] > longest:
                longest, row_of_longest = int(proteins.whole_residues[at]), _place(part, at)
        num_rows, num_without, num_long = num_rows + part.num_rows, num_without + len(without), num_long + len(long)
        said += part.said
    if num_without == num_rows:
        raise ValueError(f"{parts.name}: no row has a protein; name the column of sequences, or of mutations")
    if num_without:
        said.append(f"rows without a protein have no predictions: {num_without} of {num_rows}, first {first_without}")
    if num_long:
        found = (
            f"{num_long} of {num_rows} rows have a protein of more than {most} residues, the most that the model was "
            f"told to read, first {first_long}; the longest, {row_of_longest}, has {longest}"
        )
        if len(settings.sequence) > 1:
            raise ValueError(f"{parts.name}: {found}. Joined chains are not cut; leave these rows out")
        if settings.too_long == "refuse":
            ways = "window, start, end or ends" if settings.mutation else "start, end or ends"
            raise ValueError(f"{parts.name}: {found}. Say what is kept of them with --too-long: {ways}")
        said.append(f"{found}; what is kept of them: {settings.too_long}")
    of_parts = ((part, proteins_of(part, settings, crop_tokens, is_part=True, numbering=numbering)) for part in parts)
    return CheckedRows(parts.columns, num_rows, tuple(said), of_parts)


def _place(part: Table, index: int) -> str:
    return f"{part.row_word} {part.number(index)}"
