"""Records of small tables, for tests of splits: by sequence through a token store, or by any text without one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow

from data.store.token_store import new_hash
from finetune.splits.parts import SplitRecords, in_order_of_first
from finetune.tables.table import Table
from support.inputs.token_stores import store_of


def table_of(**columns: Sequence[str | None]) -> Table:
    """A table of text, as if read from a CSV with one header line."""
    cells = {name: pyarrow.array(list(values), pyarrow.string()) for name, values in columns.items()}
    return Table("assays.csv", pyarrow.table(cells), 2)


def named_records(of_row: Sequence[str], **columns: Sequence[str | None]) -> SplitRecords:
    """Records without a store: rows with one name are one record."""
    rows = in_order_of_first(np.array(list(of_row)))
    names = list(dict.fromkeys(of_row))
    digests = np.array([np.frombuffer(new_hash(name.encode()).digest(), "<u8")[0] for name in names])
    return SplitRecords(table_of(**columns), rows, digests)


def protein_records(folder: Path, sequences: Sequence[str], **columns: Sequence[str | None]) -> SplitRecords:
    """Records with a token store of the distinct sequences, in the order in which they first stand in the table."""
    distinct = list(dict.fromkeys(sequences))
    store = store_of(folder, [(f"r{number}", letters) for number, letters in enumerate(distinct)])
    of_row = np.array([distinct.index(letters) for letters in sequences], np.int64)
    return SplitRecords(table_of(sequence=sequences, **columns), of_row, np.asarray(store.digests), store)
