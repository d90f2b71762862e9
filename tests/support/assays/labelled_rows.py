"""Small tables of assays in memory, with the record of each row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune.labels.labels import Labels
from finetune.labels.locate import TableRows
from finetune.labels.read import TaskLabels, read_task
from finetune.tables.table import Table
from finetune.tasks.settings import TaskSettings

Cell = str | None


@dataclass(frozen=True)
class Lengths:
    """Records of some lengths, of which none was cut."""

    num_residues: NDArray[np.int64]
    linkers: NDArray[np.int64]
    record_of_row: NDArray[np.int64]

    @property
    def whole_residues(self) -> NDArray[np.int64]:
        return self.num_residues[self.record_of_row]

    def places(self, row: int, residues: NDArray[np.int64]) -> NDArray[np.int64]:
        return residues


def rows_of(
    columns: dict[str, Sequence[Cell]],
    records: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    linkers: dict[int, tuple[int, int]] | None = None,
    name: str = "t.csv",
) -> TableRows:
    """A table whose row i is of record i, or of `records[i]`; with `lengths`, of proteins."""
    cells = pa.table({column: pa.array(values, pa.string()) for column, values in columns.items()})
    of_row = np.arange(cells.num_rows) if records is None else np.array(records)
    num_records = len(lengths) if lengths else int(of_row.max()) + 1
    bounds = np.zeros((num_records, 2), np.int64)
    for record, linker in (linkers or {}).items():
        bounds[record] = linker
    places = None if lengths is None else Lengths(np.array(lengths), bounds, of_row)
    return TableRows(Table(name, cells, 2), of_row, num_records, places)


def task(**values: object) -> TaskSettings:
    return TaskSettings(**{"name": "y", "type": "regression", **values})


def read(columns: dict[str, Sequence[Cell]], records: Sequence[int] | None = None, /, **values: object) -> TaskLabels:
    """The labels of one task of one table."""
    return read_task(rows_of(columns, records), task(**values))


Label = tuple[int, int, float] | tuple[int, int, float, int]


def as_list(labels: Labels) -> list[Label]:
    """(record, output, value), and its censoring where labels have any, of each label."""
    records = np.repeat(np.arange(labels.num_records), np.diff(labels.pointers))
    columns = [records.tolist(), labels.outputs.tolist(), labels.values.tolist()]
    columns += [] if labels.censoring is None else [labels.censoring.tolist()]
    return list(zip(*columns, strict=True))
