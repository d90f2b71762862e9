"""The records, and the residues in them, that the labels of a column are about.

In: a column as text, and what each row is about. Out: `NonEmptyCells`, one for each label. Kept: nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finetune.labels.other_columns import UnusedColumns
from finetune.tables.proteins import TableProteins
from finetune.tables.table import Table
from finetune.tasks.cells import NonEmptyCells, mark_listed_residues, pair_labels, residue_labels
from finetune.tasks.settings import TaskSettings


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table, and the record of each of its rows."""

    table: Table
    records: NDArray[np.int64]
    """(rows,) record of each row, among those of this table; -1 for a row that was left out: it is not read."""
    num_records: int
    """Number of records of this table."""
    residues: TableProteins | None = None
    """Needed for labels of residues and of pairs of residues."""
    ids: Sequence[str] = ()
    """Name of each record, for errors; without any, they name rows alone."""
    others: UnusedColumns | None = None
    """Columns that nothing reads, which should not differ between rows of one label."""


@dataclass(frozen=True, slots=True)
class ColumnCells:
    """What is written in a column."""

    rows: TableRows
    name: str
    output: int
    """Which output of the objective its labels are of."""
    cells: NonEmptyCells

    def where(self, row: int) -> str:
        """The place of a cell, for errors."""
        of = f" ({self.rows.ids[self.rows.records[row]]!r})" if self.rows.ids else ""
        return f"{self.rows.table.row(row)}{of}, column {self.name!r}"


def locate_labels(column: ColumnCells, settings: TaskSettings, missing: Collection[str]) -> NonEmptyCells:
    """The labels of a column, each with its row and, below whole sequences, its place in the record.

    Raises:
        ValueError: labels of residues are more or fewer than residues, or a pair is not in its sequence.
    """
    cells = column.cells.without(missing)
    if settings.level == "sequence":
        return cells
    places = column.rows.residues
    assert places is not None, "labels of residues need proteins"
    if settings.level == "residue":
        if settings.residue_numbers != "none":
            lengths = places.whole_residues[cells.rows] - np.diff(places.linkers)[column.rows.records[cells.rows], 0]
            cells = mark_listed_residues(cells, int(settings.residue_numbers == "from_1"), lengths, column.where)
        labels, counts = residue_labels(cells, of_numbers=settings.is_number)
        labels = _beside_linkers(labels, cells.rows, counts, column, places)
    else:
        labels = pair_labels(cells, column.where).without(missing)
        _require_in_sequence(labels, column, places)
    return _in_records(labels.without(missing), column, places)


def _beside_linkers(
    labels: NonEmptyCells,
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    column: ColumnCells,
    places: TableProteins,
) -> NonEmptyCells:
    """Labels of residues at the residues of their rows; a linker has none, whether or not a cell counts it."""
    assert labels.positions is not None
    lengths, linkers = places.whole_residues[rows], places.linkers[column.rows.records[rows]]
    skipped = linkers[:, 1] - linkers[:, 0]
    leaves_out = (counts == lengths - skipped) & (skipped > 0)
    wrong = (counts != lengths) & ~leaves_out
    if wrong.any():
        first, more = int(np.argmax(wrong)), int(wrong.sum()) - 1
        others = f" ({more} more such row{'s' * (more > 1)})" if more else ""
        raise ValueError(
            f"{column.where(int(rows[first]))}: {int(counts[first])} labels for a sequence of "
            f"{int(lengths[first] - skipped[first])} residues{others}; write one for each residue, and '-' where "
            "nothing was measured"
        )
    begins = np.repeat(linkers[:, 0], counts)
    shifts = np.where(labels.positions >= begins, np.repeat(np.where(leaves_out, skipped, 0), counts), 0)
    positions = (labels.positions + shifts).astype(np.int32)
    in_linker = (positions >= begins) & (positions < np.repeat(linkers[:, 1], counts))
    return labels._replace(positions=positions).of_cells(~in_linker)


def _require_in_sequence(labels: NonEmptyCells, column: ColumnCells, places: TableProteins) -> None:
    """Refuse pairs that are not of two residues of their sequence.

    Raises:
        ValueError: a residue is after the end, or in a linker.
    """
    assert labels.positions is not None
    lengths, linkers = places.whole_residues[labels.rows], places.linkers[column.rows.records[labels.rows]]
    wrong = labels.positions[:, 1] >= lengths
    for residues in labels.positions.T:
        wrong |= (residues >= linkers[:, 0]) & (residues < linkers[:, 1])
    if wrong.any():
        first = int(np.argmax(wrong))
        pair = "-".join(str(residue + 1) for residue in labels.positions[first].tolist())
        raise ValueError(
            f"{column.where(int(labels.rows[first]))}: the pair {pair} is not in its sequence of "
            f"{int(lengths[first])} residues, linkers included; count residues from 1"
        )


def _in_records(labels: NonEmptyCells, column: ColumnCells, places: TableProteins) -> NonEmptyCells:
    """Labels at the residues of records: those of rows whose proteins were cut are moved, or left out."""
    assert labels.positions is not None
    records = column.rows.records[labels.rows]
    is_cut = places.whole_residues[labels.rows] != places.num_residues[records]
    if not is_cut.any():
        return labels
    positions = labels.positions.copy()
    for row in np.unique(labels.rows[is_cut]).tolist():
        mine = labels.rows == row
        positions[mine] = places.places(row, positions[mine].astype(np.int64))
    kept = np.logical_and.reduce(positions.reshape(len(positions), -1) >= 0, axis=1)
    return labels._replace(positions=positions).of_cells(kept)
