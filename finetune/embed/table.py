"""The table of an embedding: Parquet, a row for each record of the input, in its order.

In: the plan, vectors of consecutive sequences. Out: a Parquet file. Kept: nothing, once it is whole; memory holds one
part. Its columns are

    id            string               the first word of the header
    residues      int32                how many the sequence has
    layer_6       list of numbers      (D,), or (residues, D): one column for each layer

and its metadata hold, under ``zymogen.embedding``, what it was made of. Until it is whole, a folder beside it holds

    part-000012.bin     float16 or float32, little-endian: ``(rows, layers, D)``
    part-000012.json    its rows, and the hash of part-000012.bin; written last, so that a part is whole or not there

A row of a part is a sequence, or a residue. A part whose bytes are not those that were written counts as not there.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.store.token_store import hash_of, new_hash
from finetune.embed.plan import EmbeddingPlan, id_of
from zymogen.files.durable import flush, replacing_file, take_lock, write_atomic, write_then_rename


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """A folder of parts of one embedding."""

    folder: Path
    row: tuple[int, int]
    """(layers, D)."""
    dtype: np.dtype[np.floating]
    """Little-endian."""

    def is_whole(self, number: int, rows: int) -> bool:
        """Whether a part of so many rows is there with the bytes that were written; reads it once."""
        path = self._array(number)
        try:
            said = json.loads(self._facts(number).read_text(encoding="utf-8"))
            with path.open("rb", buffering=0) as file:
                is_written = said == {"rows": rows, "hash": hash_of(file).hexdigest()}
                return is_written and path.stat().st_size == rows * self.row[0] * self.row[1] * self.dtype.itemsize
        except (OSError, ValueError):
            return False

    def write(self, number: int, vectors: NDArray[np.floating]) -> None:
        """Write a part, in the place of one that is not whole.

        Raises:
            OSError: it cannot be written.
        """
        path, content = self._array(number), vectors.astype(self.dtype).tobytes()
        new = write_then_rename(path)
        with new.open("wb") as file:  # the error of `tofile` on a full disk does not say that it is full
            file.write(content)
        flush(new)
        os.replace(new, path)
        facts = {"rows": len(vectors), "hash": new_hash(content).hexdigest()}
        write_atomic(self._facts(number), json.dumps(facts) + "\n")

    def read(self, number: int) -> NDArray[np.floating]:
        """The rows of a part: ``(rows, layers, D)``."""
        return np.fromfile(self._array(number), self.dtype).reshape(-1, *self.row)

    def _array(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.bin"

    def _facts(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.json"


@contextmanager
def held(work: Path, out: Path) -> Iterator[None]:
    """Hold the folder in which a table is prepared, so that two commands do not write one table.

    Raises:
        ValueError: another process holds it.
    """
    descriptor = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            take_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{out}: another process is writing it; wait until that has ended, or give another name"
            ) from None
        yield
    finally:
        os.close(descriptor)


FORMAT = "zymogen.embedding/1"
KEY = b"zymogen.embedding"
ROW_GROUP_ROWS = 4096
"""Most rows of a row group."""
ROW_GROUP_BYTES = 8 << 20
"""Most bytes of the vectors of a row group, unless one sequence has more; writing one takes some six times as much."""


def provenance(path: Path) -> dict[str, Any] | None:
    """What an embedding of ours was made of; None for any other file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        found = json.loads(metadata[KEY])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None
    return dict(found)


def write_table(
    out: Path,
    plan: EmbeddingPlan,
    parts: EmbeddingParts,
    layers: tuple[int, ...],
    facts: Mapping[str, Any],
    *,
    by_residue: bool,
) -> None:
    """Write the table, whole or not at all.

    Args:
        out: the file, in the place of one that is there.
        plan: of the embedding.
        parts: all of them, whole.
        layers: number of each layer, in the order of the parts.
        facts: what the embedding is made of.
        by_residue: whether a row of a part is a residue.

    Raises:
        ValueError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = pa.float16() if parts.dtype.itemsize == 2 else pa.float32()
    vector = pa.list_(number, parts.row[1])
    column = pa.list_(pa.field("item", vector, nullable=False)) if by_residue else vector
    fields = [pa.field("id", pa.string(), nullable=False), pa.field("residues", pa.int32(), nullable=False)]
    fields += [pa.field(f"layer_{layer}", column, nullable=False) for layer in layers]
    schema = pa.schema(fields, {KEY: json.dumps(facts, sort_keys=True)})
    remedy = "get the right to write there, or give another name"
    with (
        replacing_file(out, remedy) as new,
        pq.ParquetWriter(new, schema, compression="none", use_dictionary=False, write_statistics=False) as writer,
    ):
        for part_number, records in enumerate(plan.parts):
            residues = plan.residues[records]
            vectors = parts.read(part_number)
            columns = [pa.array([id_of(header) for header in plan.store.headers(records.start, records.stop)])]
            columns.append(pa.array(residues.astype(np.int32)))
            for layer in range(len(layers)):
                flat = pa.array(np.ascontiguousarray(vectors[:, layer]).reshape(-1))
                listed = pa.FixedSizeListArray.from_arrays(flat, type=vector)
                if by_residue:
                    ends = np.concatenate([[0], np.cumsum(residues)]).astype(np.int32)
                    listed = pa.ListArray.from_arrays(pa.array(ends), listed, type=column)
                columns.append(listed)
            rows = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES * len(residues) // vectors.nbytes))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=rows)
