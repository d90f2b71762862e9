"""The proteins of a table: which sequence each row is about, and the distinct ones as records of a token store.

In: a table and the settings that say where its sequences are. Out: `Proteins`; a source for `data.store.build`, whose
record i is record i. Kept: nothing. A record is one distinct sequence; rows with equal sequences share it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.recipe.option import in_words
from data.recipe.settings import IngestSettings, LetterPolicy
from data.sources.block import START, Block, Position
from data.sources.entries import Entry, entry_blocks
from data.sources.protein import is_missing, letters_of, refusal
from data.sources.tables import ID_COLUMNS
from finetune.tables.mutations import variants
from finetune.tables.settings import TableSettings, TooLong
from finetune.tables.table import Table, sequence_column
from finetune.tables.wild_types import Numbering, wild_types_of

SPECIAL_TOKENS = 2
"""Begin and end, which a document has beside its residues."""
_MOST_ROWS = 3
"""How many rows an error names."""


@dataclass(frozen=True, slots=True)
class Proteins:
    """The N distinct proteins of a table of R rows."""

    name: str
    """The table's location."""
    ids: tuple[str, ...]
    """(N,) distinct names, of the first row of each: its cell in the id column, else ``row-17``."""
    sequences: tuple[str, ...]
    """(N,) upper-case letters, chains joined, cut if they were too long."""
    record_of_row: NDArray[np.int64]
    """(R,) record of each row; -1 for a row that was left out."""
    linkers: NDArray[np.int64]
    """(N, 2) first residue, from 0, of the linker between two chains, and the one after its last; (0, 0) without."""
    whole_residues: NDArray[np.int64]
    """(R,) residues of each row's protein before it was cut; 0 for a row that was left out."""
    too_long: TooLong
    """What was kept of a protein that was cut."""
    mutated: tuple[tuple[int, ...], ...] | None
    """(R,) residues, from 0, in which a row differs from its wild type, before it was cut; None without mutations."""
    wild_types: tuple[str, ...] | None
    """(R,) name of the wild type of each row; None without mutations."""
    said: tuple[str, ...]
    """What was decided, for the user: sentences without the table's name."""
    unknown_letters: LetterPolicy = "refuse"
    """What becomes of letters outside the alphabet."""

    @property
    def num_records(self) -> int:
        """Number of distinct proteins, N."""
        return len(self.sequences)

    @property
    def num_residues(self) -> NDArray[np.int64]:
        """(N,) residues of each record, linkers included."""
        return np.array([len(letters) for letters in self.sequences], np.int64)

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """(N,) the first row of each record."""
        used, first = np.unique(self.record_of_row, return_index=True)
        return first[used >= 0].astype(np.int64)

    def places(self, row: int, residues: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where residues of a row's protein, from 0, are in its record; -1 for those that were cut away."""
        whole, record = int(self.whole_residues[row]), int(self.record_of_row[row])
        kept = len(self.sequences[record])
        if whole == kept:
            return residues
        head, tail = kept_ends(kept, self.too_long)
        found = np.where(residues < head, residues, residues - (whole - kept))
        return np.where((residues < head) | (residues >= whole - tail), found, -1)

    def source(self, limits: IngestSettings | None = None) -> "ProteinSource":
        """The records as a source of a token store."""
        return ProteinSource(self, limits or IngestSettings())


@dataclass(frozen=True, slots=True)
class ProteinSource:
    """The distinct proteins of a table, for `data.store.build.open_or_build` (a `data.sources.block.Source`)."""

    proteins: Proteins
    limits: IngestSettings

    @property
    def name(self) -> str:
        """The table's location."""
        return self.proteins.name

    @property
    def num_bytes(self) -> int | None:
        """Residues of all records."""
        return int(self.proteins.num_residues.sum())

    def stamp(self) -> list[str | int]:
        """Hash of ids and sequences, so that a store is built again exactly if these change."""
        digest = hashlib.blake2b(digest_size=16)
        for record_id, letters in zip(self.proteins.ids, self.proteins.sequences, strict=True):
            digest.update(f"{record_id}\0{letters}\0".encode())
        return ["proteins", self.proteins.num_records, digest.hexdigest()]

    def blocks(self, start: Position = START) -> Iterator[Block]:
        """The records from `start` on, in order."""
        num_read = 0

        def entries() -> Iterator[Entry]:
            nonlocal num_read
            for record in range(start.records, self.proteins.num_records):
                letters = self.proteins.sequences[record].encode()
                num_read += len(letters)
                yield Entry(self.proteins.ids[record].encode(), letters)

        yield from entry_blocks(entries(), self.proteins.unknown_letters, self.limits, start, lambda: num_read)


def proteins_of(
    table: Table,
    settings: TableSettings,
    crop_tokens: int | None,
    limits: IngestSettings | None = None,
    *,
    is_part: bool = False,
    numbering: Numbering | None = None,
) -> Proteins:
    """The protein of each row.

    Args:
        table: the table.
        settings: where its proteins are.
        crop_tokens: longest document, begin and end included; None for no limit.
        limits: longest header and longest protein.
        is_part: whether it is a part of a table, in which all rows may be left out.
        numbering: of the mutations of the whole table, for a part of it.

    Raises:
        ValueError: there is no column of sequences; a row has no protein, or text that is none; a wild type has another
            residue than a mutation says; proteins are longer than `crop_tokens`; an id stands for two proteins. The
            message names the row.
    """
    limits = limits or IngestSettings()
    said: list[str] = []
    mutated: tuple[tuple[int, ...], ...] | None = None
    wild_types: tuple[str, ...] | None = None
    unusable: dict[int, str] = {}
    chains: list[list[str | None]]
    if settings.mutation:
        parents = wild_types_of(table, settings, limits)
        found = variants(
            table,
            settings.mutation,
            parents,
            empty_is_wild_type=settings.empty_mutation == "wild_type",
            offset=settings.numbering_offset,
            leaves_out=settings.rows_without_protein == "leave_out",
            numbering=numbering,
        )
        columns = settings.mutation[:1]
        chains, mutated, wild_types = [list(found.sequences)], found.mutated, tuple(parents.of_rows)
        unusable |= found.unusable
        said += found.said
    else:
        columns = settings.sequence or (sequence_column(table),)
        for column in columns:
            table.require(column, in_words("data.sequence") or "column")
        chains = [table.column(column) for column in columns]
    cleaned = _cleaned(table, columns, chains, unusable, settings, limits)
    _leave_out(table, unusable, settings, said, is_part=is_part)
    most = None if crop_tokens is None else crop_tokens - SPECIAL_TOKENS
    return _records(table, cleaned, settings, most, said, mutated, wild_types, limits)


def in_memory(name: str, sequences: Sequence[str]) -> Proteins:
    """Distinct sequences that are in no table, a row for each.

    Args:
        name: what they are, in place of a table's location.
        sequences: upper-case letters.
    """
    return Proteins(
        name=name,
        ids=tuple(f"row-{number}" for number in range(1, len(sequences) + 1)),
        sequences=tuple(sequences),
        record_of_row=np.arange(len(sequences)),
        linkers=np.zeros((len(sequences), 2), np.int64),
        whole_residues=np.array([len(letters) for letters in sequences], np.int64),
        too_long="refuse",
        mutated=None,
        wild_types=None,
        said=(),
    )


def kept_ends(kept: int, policy: TooLong) -> tuple[int, int]:
    """How many of `kept` residues are from the beginning of a protein that was cut, and how many from its end."""
    head = {"start": kept, "end": 0, "ends": (kept + 1) // 2}.get(policy, kept)
    return head, kept - head


def _cleaned(
    table: Table,
    columns: Sequence[str],
    chains: Sequence[Sequence[str | None]],
    unusable: dict[int, str],
    settings: TableSettings,
    limits: IngestSettings,
) -> list[tuple[str, ...]]:
    """Upper-case letters of each chain of each row; rows without one are added to `unusable`.

    Raises:
        ValueError: a cell holds something else than a protein, and such rows are refused.
    """
    known: dict[str, str] = {}
    cleaned = []
    for index, cells in enumerate(zip(*chains, strict=True)):
        row = []
        for column, cell in zip(columns, cells, strict=True):
            letters = known.get(cell or "")
            if letters is None:
                raw = letters_of((cell or "").encode("ascii", "replace")).upper()
                if is_missing(raw):
                    unusable.setdefault(index, f"its column {column!r} {f'says {cell!r}' if raw else 'is empty'}")
                    break
                if refused := refusal(b"protein", raw, settings.unknown_letters, limits):
                    if settings.rows_without_protein == "refuse":
                        raise ValueError(f"{table.row(index)}, column {column!r}: {refused.reason}")
                    unusable.setdefault(index, f"its column {column!r} {refused.reason}")
                    break
                letters = known[cell or ""] = raw.decode("ascii")
            row.append(letters)
        cleaned.append(tuple(row) if index not in unusable else ())
    return cleaned


def _leave_out(
    table: Table, unusable: dict[int, str], settings: TableSettings, said: list[str], *, is_part: bool
) -> None:
    """Refuse rows without a protein, or report them, as the policy says."""
    if not unusable:
        return
    first = min(unusable)
    if settings.rows_without_protein == "refuse":
        more = f"; so have {len(unusable) - 1} more rows" if len(unusable) > 1 else ""
        way = in_words("data.rows_without_protein", "leave_out", ", or leave such rows out with ")
        raise ValueError(f"{table.row(first)}: has no protein: {unusable[first]}{more}. Fill it{way}")
    if len(unusable) == table.num_rows and not is_part:
        raise ValueError(
            f"{table.name}: no row has a protein; in {table.row_word} {table.shown(first)}, {unusable[first]}"
        )
    said.append(
        f"rows without a protein are left out: {len(unusable)} of {table.num_rows}, the first in {table.row_word} "
        f"{table.shown(first)}: {unusable[first]}"
    )


def _records(
    table: Table,
    cleaned: Sequence[tuple[str, ...]],
    settings: TableSettings,
    most: int | None,
    said: list[str],
    mutated: tuple[tuple[int, ...], ...] | None,
    wild_types: tuple[str, ...] | None,
    limits: IngestSettings,
) -> Proteins:
    records: dict[tuple[str, int], int] = {}
    linkers: list[tuple[int, int]] = []
    first_rows: list[int] = []
    record_of_row = np.full(len(cleaned), -1, np.int64)
    whole = np.zeros(len(cleaned), np.int64)
    joined = [settings.linker.join(chains) for chains in cleaned]
    too_long = [index for index, letters in enumerate(joined) if most is not None and len(letters) > most]
    if too_long:
        assert most is not None
        _require_policy(table, joined, too_long, settings, most)
        kept = {"start": "the first", "end": "the last", "ends": "the first and last, half each,"}[settings.too_long]
        said.append(
            f"rows whose protein has more than {most} residues, of which {kept} {most} are kept: {len(too_long)}; the "
            f"longest has {max(len(joined[index]) for index in too_long)}"
        )
    for index, (chains, letters) in enumerate(zip(cleaned, joined, strict=True)):
        if not chains:
            continue
        whole[index] = len(letters)
        if most is not None and len(letters) > most:
            head, tail = kept_ends(most, settings.too_long)
            letters = letters[:head] + letters[len(letters) - tail :]
        is_joined = len(chains) > 1 and bool(settings.linker)
        begin = len(chains[0]) if is_joined else 0
        record = records.setdefault((letters, begin), len(records))
        if record == len(linkers):
            linkers.append((begin, begin + len(settings.linker)) if is_joined else (0, 0))
            first_rows.append(index)
        record_of_row[index] = record
    if (num_rows := int(np.count_nonzero(record_of_row >= 0))) > len(records):
        said.append(f"{num_rows} rows are of {len(records)} distinct proteins")
    return Proteins(
        table.name,
        _ids(table, settings, first_rows, said),
        tuple(letters for letters, _ in records),
        record_of_row,
        np.array(linkers, np.int64).reshape(-1, 2),
        whole,
        settings.too_long,
        mutated,
        wild_types,
        tuple(said),
        settings.unknown_letters,
    )


def _require_policy(
    table: Table, joined: Sequence[str], too_long: Sequence[int], settings: TableSettings, most: int
) -> None:
    longest = max(too_long, key=lambda index: len(joined[index]))
    shown = ", ".join(table.shown(index) for index in too_long[:_MOST_ROWS])
    shown += f" and {len(too_long) - _MOST_ROWS} more" if len(too_long) > _MOST_ROWS else ""
    found = (
        f"{table.name}: {len(too_long)} of {len(joined)} rows have a protein of more than {most} residues "
        f"(data.crop_tokens less begin and end), in {table.row_word} {shown}; the longest, in {table.row_word} "
        f"{table.shown(longest)}, has {len(joined[longest])}"
    )
    if settings.too_long == "refuse":
        raise ValueError(
            f"{found}. Raise data.crop_tokens to {len(joined[longest]) + SPECIAL_TOKENS}, or set data.too_long to "
            "what is kept of them: 'start', 'end' or 'ends'"
        )
    if len(settings.sequence) > 1:
        raise ValueError(f"{found}. Joined chains are not cut; raise data.crop_tokens, or leave these rows out")


def _ids(table: Table, settings: TableSettings, first_rows: Sequence[int], said: list[str]) -> tuple[str, ...]:
    """A name for each record: from the column that is named, or a usual one that tells records apart, or its row."""
    named = settings.id
    if named is not None:
        table.require(named, in_words("data.id") or "column")
    by_name = {column.strip().lower(): column for column in reversed(table.columns)}
    usual = [by_name[name] for name in ID_COLUMNS if name in by_name]
    for column in [named] if named else [*usual, *settings.mutation[:1]]:
        cells = table.column(column)
        ids = [" ".join((cells[index] or "").split()) for index in first_rows]
        of_id = Counter(ids)
        if all(ids) and len(of_id) < len(ids) and table.origins:  # an id may be of another protein in another table
            ids = [table.id_of(index, each) for index, each in zip(first_rows, ids, strict=True)]
            of_id = Counter(ids)
        if all(ids) and len(of_id) == len(ids):
            return tuple(ids)
        if named is None:
            continue
        if not all(ids):
            raise ValueError(f"{table.row(first_rows[ids.index('')])}: its id, in column {named!r}, is empty; fill it")
        twice = next(each for each in ids if of_id[each] > 1)
        first, second, *_ = [first_rows[at] for at, each in enumerate(ids) if each == twice]
        raise ValueError(
            f"{table.row(second)}: the id {twice!r}, in column {named!r}, is that of {table.row_word} "
            f"{table.shown(first)} too, which has another protein; give each protein its own id, or leave data.id out"
        )
    if usual and named is None:
        said.append(f"the column {usual[0]!r} does not tell proteins apart, so that they are called by their rows")
    return tuple(table.id_of(index) for index in first_rows)
