"""Tables that name records: joined with the headers of a store, sorted, in bounded memory.

In: a store and a TSV. Out: rising keys ``2 * record + place of the name``, with what the table lists for them. A record
is named by the first word of its header, or by the accession in that word. Kept: nothing; DuckDB (https://duckdb.org)
reads the table, joins and sorts; the session removes the folder it spills into.
"""

import gzip
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from data.transport.compression import compression

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

_ACCESSION_FIELD = {
    **dict.fromkeys((b"sp", b"tr"), 1),  # UniProt
    **dict.fromkeys((b"bbm", b"bbs", b"cl", b"dbj", b"emb", b"gb", b"gim", b"gpp", b"lcl", b"nat", b"pdb", b"ref"), 1),
    **dict.fromkeys((b"tpd", b"tpe", b"tpg"), 1),
    **dict.fromkeys((b"gnl", b"pat", b"pgp", b"pir", b"prf"), 2),
    b"gi": 3,
}
"""Which field of an identifier with bars is the accession, by the first field: data bases of NCBI and UniProt (NCBI C++
Toolkit, FASTA sequence ID format). ``1ABC_1|Chains A, B`` of the PDB has none."""


def names(header: bytes) -> tuple[bytes, ...]:
    """The header's first word, and the accession inside it if it has one; one or two names.

    ``sp|P12345|NAME_HUMAN`` has the accession P12345, ``gi|1234|gb|AAP56351.2|`` has AAP56351.2; MMseqs2's tables give
    the accession alone. A blank header has the one name ``b""``.
    """
    word = (header.split(maxsplit=1) or [b""])[0]
    fields = word.split(b"|")
    field = _ACCESSION_FIELD.get(fields[0], len(fields))
    return (word, fields[field]) if field < len(fields) and fields[field] else (word,)


TableLayout = Literal["pairs", "idmapping", "names"]
"""``pairs``: cluster, member. ``idmapping``: UniProt's idmapping_selected.tab. ``names``: a name, then any columns."""

IDMAPPING_COLUMNS = 22
IDMAPPING_NAMES = (0, 1, 7, 8, 9)
"""UniProtKB accession, UniProtKB entry name, UniRef100, UniRef90 and UniRef50 id, counted from 0 (UniProt's README of
the folder ``knowledgebase/idmapping``)."""
UNIREF50 = 9

BLOCK = 1 << 16
"""Number of records or rows that are passed at a time."""
_MEMORY = "400MB"
_MAX_LINE_BYTES = 16 << 20
_HEAD_BYTES = 512
"""Bytes at the beginning of a file that show its compression."""


@contextmanager
def session(folder: Path, no_room: Callable[[str], str] | None = None) -> Iterator[Any]:
    """A DuckDB connection that takes at most 400 MB of memory and spills into `folder`; leaves nothing there.

    Args:
        folder: an existing folder.
        no_room: makes the error message for want of space or memory from the reason that DuckDB gives.

    Raises:
        ValueError: there is not enough space or memory.
    """
    import duckdb

    try:
        with tempfile.TemporaryDirectory(prefix=".join-", dir=folder) as work:
            settings: dict[str, str | bool | int | float | list[str]] = {
                "memory_limit": _MEMORY,
                "threads": 2,
                "temp_directory": f"{work}/spill",
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
            }
            with duckdb.connect(f"{work}/join.duckdb", config=settings) as connection:
                connection.execute("SET enable_progress_bar = false")
                yield connection
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        reason = " ".join(str(error).split())[:300]
        there = f"{folder.parent}: a table cannot be joined or sorted there ({reason}); nothing of it was kept; "
        raise ValueError(no_room(reason) if no_room else f"{there}free space on that disk and start again") from None


def batches(connection: Any, query: str, parameters: list[Any] | None = None) -> Iterator[tuple[NDArray[Any], ...]]:
    """The result of a query as the NumPy arrays of its columns, `BLOCK` rows at a time."""
    for batch in connection.sql(query, params=parameters or []).to_arrow_reader(BLOCK):
        yield tuple(column.to_numpy(zero_copy_only=False) for column in batch.columns)


def register_hashes(connection: Any, blocks: Iterable[tuple[int, NDArray[np.uint64]]]) -> None:
    """Let one query read the table ``hashes`` of (hash, record), from blocks of (first record, hashes)."""
    import pyarrow

    schema = pyarrow.schema([("hash", pyarrow.uint64()), ("record", pyarrow.uint64())])

    def streamed() -> Iterator[Any]:
        for start, block in blocks:
            records = np.arange(start, start + len(block), dtype=np.uint64)
            yield pyarrow.record_batch([pyarrow.array(block), pyarrow.array(records)], schema=schema)

    connection.register("hashes", pyarrow.RecordBatchReader.from_batches(schema, streamed()))


def rows(path: Path, columns: dict[str, str], *, strict: bool = True) -> tuple[str, list[Any]]:
    """The SQL that reads a headerless TSV without quoting, and its parameters.

    Args:
        path: path of the TSV.
        columns: the type of each column by its name.
        strict: whether DuckDB refuses what does not follow the standard, such as two kinds of line ends.
    """
    listed = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    return (
        f"read_csv(?, columns={{{listed}}}, delim='\t', header=false, quote='', escape='', comment='', "
        f"auto_detect=false, strict_mode={str(strict).lower()}, max_line_size={_MAX_LINE_BYTES}, "
        f"compression='{_packing(path) or 'none'}')",
        [str(path)],
    )


def clusters_of(connection: Any, store: "TokenStore", table: Path) -> Iterator[tuple[NDArray[Any], ...]]:
    """Each name of a record that a cluster table lists, as keys and cluster hashes (uint64, uint64), rising.

    The hash of a cluster is the lower half of its id's MD5. A name that is listed in two clusters is given twice.

    Raises:
        ValueError: the file does not exist, or has a line that is not a row; the message names file and line.
    """
    width = _width(table, "data.clusters names a TSV of (cluster, record id)")
    if width == IDMAPPING_COLUMNS:
        listed = ", ".join(f"column{column}" for column in IDMAPPING_NAMES)
        select = (
            f"unnest([{listed}]) AS name, md5_number_lower(column{UNIREF50}) AS cluster",
            f"WHERE column{UNIREF50} IS NOT NULL",
        )
        _load(connection, table, "idmapping", width, select)
    else:
        _load(connection, table, "pairs", 2, ("column1 AS name, md5_number_lower(column0) AS cluster", ""))
        if any(_row(connection, "SELECT count(*) FROM listed WHERE name IS NULL OR cluster IS NULL")):
            _refuse(table, "pairs", 2)
    _join(connection, store, "cluster")
    yield from batches(connection, "SELECT DISTINCT key, cluster FROM hits ORDER BY key, cluster")


MATCHES = ("names", "unknown", "shared", "sharing")
"""How the names of a table match the records of a store: numbers of different names, of those that no record has, of
those that several records have, and of the records that have a shared name."""


def records_named(
    connection: Any, store: "TokenStore", table: Path
) -> tuple[Iterator[NDArray[np.int64]], dict[str, int]]:
    """The records, rising, that the first column of a TSV names; and how its names match, by `MATCHES`.

    Raises:
        ValueError: the file does not exist, or has a line with another number of columns; the message names file and
            line.
    """
    width = _width(table, "data.exclude names a TSV whose first column is a record id")
    select = "DISTINCT column0 AS name", "WHERE column0 IS NOT NULL"
    _load(connection, table, "names", max(width, 1), select)
    _join(connection, store, "name")
    matches = """
        WITH known AS (SELECT name, count(DISTINCT key // 2) AS records FROM hits GROUP BY name),
            shared AS (SELECT name FROM known WHERE records > 1)
        SELECT (SELECT count(*) FROM listed), (SELECT count(*) FROM listed) - (SELECT count(*) FROM known),
            (SELECT count(*) FROM shared),
            (SELECT count(DISTINCT key // 2) FROM hits WHERE name IN (SELECT name FROM shared))
    """
    query = "SELECT DISTINCT (key // 2)::BIGINT AS record FROM hits ORDER BY record"
    counts = dict(zip(MATCHES, _row(connection, matches), strict=True))
    return (records for (records,) in batches(connection, query)), counts


def shown(name: bytes) -> str:
    """A name as text: bytes that are not UTF-8 are escaped, and always in the same way, so that names can be joined."""
    return name.decode("utf-8", "backslashreplace")


def _row(connection: Any, query: str) -> tuple[int, ...]:
    """The one row of counts that a query gives."""
    (row,) = connection.execute(query).fetchall()  # not fetchone: DuckDB keeps the connection busy after it
    return tuple(map(int, row))


def _load(connection: Any, table: Path, layout: TableLayout, width: int, select: tuple[str, str]) -> None:
    """Create the table ``listed`` from the file."""
    import duckdb

    names_and_types = {f"column{column}": "VARCHAR" for column in range(width)}
    columns, where = select
    for strict in (True, False):
        source, parameters = rows(table, names_and_types, strict=strict)
        try:
            connection.execute(f"CREATE TABLE listed AS SELECT {columns} FROM {source} {where}", parameters)
            return
        except duckdb.Error as error:
            _refuse(table, layout, width)
            if not isinstance(error, duckdb.InvalidInputException):
                raise
            if not strict:
                said = str(error).partition("\n")[0]
                raise ValueError(
                    f"{table}: cannot be read: {said}; write it again, with one kind of line end"
                ) from error
        # `_refuse` found no wrong line, so some lines end with \r\n and some with \n.


def _join(connection: Any, store: "TokenStore", column: str) -> None:
    """Create the table ``hits`` of (key, `column`) from ``listed`` and the names of the store's records."""
    import pyarrow

    schema = pyarrow.schema([("key", pyarrow.uint64()), ("name", pyarrow.string())])

    def streamed() -> Iterator[Any]:
        for start in range(0, store.num_records, BLOCK):
            # The pages of a map stay in memory after they were scanned, so each block has its own map.
            block = type(store)(store.folder)
            keys, found = [], []
            for record, header in enumerate(block.headers(start, min(start + BLOCK, store.num_records)), start):
                for place, name in enumerate(names(header)):
                    keys.append(2 * record + place)
                    found.append(shown(name))
            yield pyarrow.record_batch([pyarrow.array(keys, pyarrow.uint64()), pyarrow.array(found)], schema=schema)

    connection.register("named", pyarrow.RecordBatchReader.from_batches(schema, streamed()))
    try:
        connection.execute(f"CREATE TABLE hits AS SELECT key, {column} FROM named JOIN listed USING (name)")
    finally:
        connection.unregister("named")


def _width(table: Path, wanted: str) -> int:
    """Number of columns of the first line that is not blank; 0 for an empty file."""
    if not table.is_file():
        raise ValueError(f"{table} is no file; {wanted}")
    with _open(table) as file:
        try:
            for line in file:
                if line.strip():
                    return line.count(b"\t") + 1
        except (OSError, EOFError) as error:
            raise ValueError(f"{table}: cannot be read: {error}; copy or download it again") from None
    return 0


def _refuse(table: Path, layout: TableLayout, width: int) -> None:
    """Read the file again to find the line that is wrong.

    Raises:
        ValueError: a line is wrong; the message names it.
    """
    wanted = {
        "pairs": "two, cluster and record id",
        "idmapping": f"{width}, as the first line has and as UniProt's idmapping_selected.tab",
        "names": f"{width}, as the first line has",
    }[layout]
    number = 0
    try:
        with _open(table) as file:
            for number, line in enumerate(file, 1):
                columns = line.rstrip(b"\r\n").split(b"\t")
                if b"\r" in line.rstrip(b"\r\n"):
                    raise ValueError(
                        f"{table}: line {number} has a carriage return inside; end lines with \\n or \\r\\n"
                    )
                if line.strip() and (len(columns) != width or (layout == "pairs" and not all(columns))):
                    raise ValueError(
                        f"{table}: line {number} has {len([c for c in columns if c])} tab-separated columns; "
                        f"it must have {wanted}"
                    )
                line.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{table}: line {number} is not UTF-8; write the table as UTF-8") from None
    except (OSError, EOFError) as error:
        raise ValueError(f"{table}: cannot be read after line {number}: {error}; copy it again") from None


def _open(table: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(table)) if _packing(table) else table.open("rb")


def _packing(table: Path) -> str:
    """The compression of a file: "gzip", or "" for none.

    Raises:
        ValueError: it has another compression.
    """
    with table.open("rb") as file:
        packing = compression(file.read(_HEAD_BYTES))
    if packing not in ("", "gzip"):
        raise ValueError(f"{table}: is a {packing} file; a table of records is read plain or as gzip: unpack it first")
    return packing
