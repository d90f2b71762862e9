"""The proteins of a table: which sequence each row is about, and the distinct ones as records of a token store.

In: a table and the settings that say where its sequences are. Out: `TableProteins`, a source for `data.store.build`,
whose record i is record i. Kept: nothing. A record is one distinct sequence of tokens, before anything is cut away;
rows with equal ones share it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS, REFUSED, UNK
from data.order.plan import SPECIAL_TOKENS
from data.settings import LetterPolicy, SourceContent
from data.sources.block import START, RecordBlock, SourcePosition
from data.sources.record_format import Entry, entry_blocks
from finetune.tables.mutations import variants
from finetune.tables.settings import LINKER, TableSettings, TooLong
from finetune.tables.table import Table, ids_of, sequence_column
from finetune.tables.wild_types import ResidueNumbering, letters_in, wild_types_of
from finetune.tables.windows import check_lengths, kept_residues
from zymogen.settings.origin import format_option

_TOKENS = np.where(LETTER_IDS == REFUSED, UNK, LETTER_IDS).astype(np.uint8).tobytes()
"""Token of each letter: letters that become <unk> do not tell two proteins apart."""
_SHOWN_REASONS = 2


@dataclass(frozen=True, slots=True)
class TableProteins:
    """The N distinct proteins of a table of R rows, and the source of their token store.

    It is a `data.sources.block.Source` of its records, for `data.store.build.open_or_build`.
    """

    name: str
    """The table's location."""
    ids: tuple[str, ...]
    """(N,) distinct names: the first of its rows' cells in the id column, else ``row-17``, its first row."""
    digests: NDArray[np.uint64]
    """(N,) digest of each protein's tokens and linker, before it was cut; no two are equal."""
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
    cuts: NDArray[np.int64]
    """(N, 2) the residue that the record begins with, and how many follow it; the others are the last ones."""
    mutated: tuple[tuple[int, ...], ...] | None
    """(R,) residues, from 0, in which a row differs from its wild type, before it was cut; None without mutations."""
    wild_types: tuple[str, ...] | None
    """(R,) name of the wild type of each row; None without mutations."""
    said: tuple[str, ...]
    """What was decided, for the user: sentences without the table's name."""
    unknown_letters: LetterPolicy = "refuse"
    """What becomes of letters outside the alphabet."""
    content: SourceContent = "protein"
    """"any" if letters are amino acids whatever they look like."""

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

    @property
    def sites(self) -> NDArray[np.int64] | None:
        """(R,) number of the wild type and the mutated residues of each record's first row, -1 in other rows.

        None without mutations.
        """
        if self.mutated is None or self.wild_types is None:
            return None
        keys = list(zip(self.wild_types, self.mutated, strict=True))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        found = np.full(len(keys), -1)
        found[self.first_rows] = [numbers[keys[row]] if keys[row][1] else -1 for row in self.first_rows.tolist()]
        return found

    def places(self, row: int, residues: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where residues of a row's protein, from 0, are in its record; -1 for those that were cut away."""
        whole, record = int(self.whole_residues[row]), int(self.record_of_row[row])
        kept, (begin, head) = len(self.sequences[record]), self.cuts[record].tolist()
        in_head = (residues >= begin) & (residues < begin + head)
        in_tail = residues >= whole - (kept - head)
        return np.where(in_head, residues - begin, np.where(in_tail, residues - (whole - kept), -1))

    def of_records(self, records: NDArray[np.int64]) -> "TableProteins":
        """Some records in some order; rows of others are left out."""
        number = np.full(self.num_records + 1, -1)  # the last one is that of rows without a record
        number[records] = np.arange(len(records))
        return replace(
            self,
            ids=tuple(self.ids[record] for record in records),
            digests=self.digests[records],
            sequences=tuple(self.sequences[record] for record in records),
            record_of_row=number[self.record_of_row],
            linkers=self.linkers[records],
            cuts=self.cuts[records],
        )

    def by_content(self) -> "TableProteins":
        """The same with records in the order of their digests, so that nothing depends on the order of rows."""
        return self.of_records(np.argsort(self.digests))

    @property
    def num_bytes(self) -> int | None:
        """Residues of all records."""
        return int(self.num_residues.sum())

    def stamp(self) -> list[str | int]:
        """Hash of ids and sequences, so that a store is built again exactly if these change."""
        digest = hashlib.blake2b(digest_size=16)
        for record_id, letters in zip(self.ids, self.sequences, strict=True):
            digest.update(f"{record_id}\0{letters}\0".encode())
        return ["proteins", self.num_records, digest.hexdigest()]

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """The records from `start` on, in order."""
        num_read = 0

        def entries() -> Iterator[Entry]:
            nonlocal num_read
            for record in range(start.records, self.num_records):
                letters = self.sequences[record].encode()
                num_read += len(letters)
                yield Entry(self.ids[record].encode(), letters)

        yield from entry_blocks(entries(), self.unknown_letters, self.content, start, lambda: num_read)


def proteins_of(
    table: Table,
    settings: TableSettings,
    crop_tokens: int | None,
    content: SourceContent = "protein",
    *,
    is_part: bool = False,
    numbering: ResidueNumbering | None = None,
) -> TableProteins:
    """The protein of each row.

    Args:
        table: the table.
        settings: where its proteins are.
        crop_tokens: longest document, begin and end included; None for no limit.
        content: "any" if letters are amino acids whatever they look like.
        is_part: whether it is a part of a table, in which all rows may be left out, and two proteins may be read alike.
        numbering: of the mutations of the whole table, for a part of it.

    Raises:
        ValueError: there is no column of sequences; a row has no protein, or text that is none; a wild type has another
            residue than a mutation says; proteins are longer than `crop_tokens`; an id stands for two proteins. The
            message names the row.
    """
    said: list[str] = []
    mutated: tuple[tuple[int, ...], ...] | None = None
    wild_types: tuple[str, ...] | None = None
    unusable: dict[int, str] = {}
    if settings.mutation:
        parents = wild_types_of(table, settings, content)
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
            table.require(column, format_option("data.sequence") or "column")
        chains = [table.column(column) for column in columns]
    cleaned = _cleaned(columns, chains, unusable, settings, content)
    joined = [LINKER.join(row) for row in cleaned]
    if not settings.mutation:
        said += _merged_cases(table, columns, joined, chains)
    most = max(map(len, joined), default=0) if crop_tokens is None else crop_tokens - SPECIAL_TOKENS
    check_lengths(table, joined, settings, most, said, mutated, unusable)
    cleaned = [() if index in unusable else row for index, row in enumerate(cleaned)]
    _leave_out(table, unusable, settings, said, is_part=is_part)
    proteins = _records(table, cleaned, joined, settings, most, said, mutated, wild_types, content)
    return proteins if is_part else _without_equals(table, proteins)


def in_memory(name: str, sequences: Sequence[str]) -> TableProteins:
    """Distinct sequences that are in no table, a row for each.

    Args:
        name: what they are, in place of a table's location.
        sequences: upper-case letters.
    """
    return TableProteins(
        name=name,
        ids=tuple(f"row-{number}" for number in range(1, len(sequences) + 1)),
        sequences=tuple(sequences),
        record_of_row=np.arange(len(sequences)),
        digests=np.array([_digest(letters.encode().translate(_TOKENS), 0) for letters in sequences], np.uint64),
        linkers=np.zeros((len(sequences), 2), np.int64),
        whole_residues=np.array([len(letters) for letters in sequences], np.int64),
        too_long="refuse",
        cuts=np.array([(0, len(letters)) for letters in sequences], np.int64).reshape(-1, 2),
        mutated=None,
        wild_types=None,
        said=(),
    )


def _cleaned(
    columns: Sequence[str],
    chains: Sequence[Sequence[str | None]],
    unusable: dict[int, str],
    settings: TableSettings,
    content: SourceContent,
) -> list[tuple[str, ...]]:
    """Upper-case letters of each chain of each row; rows without one are added to `unusable`."""
    read = {cell: letters_in(cell, settings.unknown_letters, content) for cell in dict.fromkeys(chain(*chains))}
    cleaned = []
    for index, cells in enumerate(zip(*chains, strict=True)):
        row = [read[cell] for cell in cells]
        cleaned.append(() if any(why for _, why in row) else tuple(letters for letters, _ in row))
        for column, (_, why) in zip(columns, row, strict=True):
            if why:
                unusable.setdefault(index, f"its column {column!r} {why}")
    return cleaned


def _merged_cases(
    table: Table, columns: Sequence[str], joined: Sequence[str], chains: Sequence[Sequence[str | None]]
) -> list[str]:
    """What is said of sequences that differ in upper and lower case alone: in peptides, lower case may mean D."""
    first: dict[str, int] = {}
    merged: dict[str, str] = {}
    spelled = ["".join("".join(cell or "" for cell in cells).split()) for cells in zip(*chains, strict=True)]
    for index, letters in enumerate(joined):
        other = first.setdefault(letters, index)
        if letters and spelled[other] != spelled[index] and spelled[other].upper() == spelled[index].upper():
            merged.setdefault(letters, f"{table.shown(other)} and {table.shown(index)}")
    return [
        f"{len(merged)} sequences are written in upper and in lower case and are read as one, such as in "
        f"{table.row_word}s {rows}: D residues are not told from L (column {columns[0]!r})"
        for rows in [*merged.values()][:1]
    ]


def _leave_out(
    table: Table, unusable: dict[int, str], settings: TableSettings, said: list[str], *, is_part: bool
) -> None:
    """Refuse rows without a protein, or report them, as the policy says."""
    if not unusable:
        return
    first = min(unusable)
    if settings.rows_without_protein == "refuse":
        more = f"; so have {len(unusable) - 1} more rows" if len(unusable) > 1 else ""
        way = format_option("data.rows_without_protein", "leave_out", ", or leave such rows out with ")
        raise ValueError(f"{table.row(first)}: has no protein: {unusable[first]}{more}. Fill it{way}")
    if len(unusable) == table.num_rows and not is_part:
        raise ValueError(
            f"{table.name}: no row has a protein; in {table.row_word} {table.shown(first)}, {unusable[first]}"
        )
    reasons = dict.fromkeys(unusable[row] for row in sorted(unusable))
    said.append(
        f"rows without a protein are left out: {len(unusable)} of {table.num_rows}, the first in {table.row_word} "
        f"{table.shown(first)}: {'; another: '.join([*reasons][:_SHOWN_REASONS])}"
    )


def _records(
    table: Table,
    cleaned: Sequence[tuple[str, ...]],
    joined: Sequence[str],
    settings: TableSettings,
    most: int,
    said: list[str],
    mutated: tuple[tuple[int, ...], ...] | None,
    wild_types: tuple[str, ...] | None,
    content: SourceContent,
) -> TableProteins:
    """The distinct proteins, in the order of their first rows."""
    rows: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
    for index, chains in enumerate(cleaned):
        if chains:
            begin = len(chains[0]) if len(chains) > 1 else 0
            rows[joined[index].encode().translate(_TOKENS), begin].append(index)
    record_of_row = np.full(len(cleaned), -1, np.int64)
    whole = np.array([len(letters) if chains else 0 for chains, letters in zip(cleaned, joined, strict=True)], np.int64)
    sequences, cuts = [], []
    for record, of_record in enumerate(rows.values()):
        record_of_row[of_record] = record
        letters = joined[of_record[0]]
        kept = kept_residues(len(letters), most, settings.too_long, mutated[of_record[0]] if mutated else ())
        sequences.append(letters[kept.begin : kept.begin + kept.head] + letters[len(letters) - kept.tail :])
        cuts.append((kept.begin, kept.head))
    linkers = [(begin, begin + len(LINKER)) if begin else (0, 0) for _, begin in rows]
    if (num_rows := int(np.count_nonzero(record_of_row >= 0))) > len(rows):
        said.append(f"{num_rows} rows are of {len(rows)} distinct proteins")
    return TableProteins(
        table.name,
        ids_of(table, settings, list(rows.values()), said),
        np.array([_digest(tokens, begin) for tokens, begin in rows], np.uint64),
        tuple(sequences),
        record_of_row,
        np.array(linkers, np.int64).reshape(-1, 2),
        whole,
        settings.too_long,
        np.array(cuts, np.int64).reshape(-1, 2),
        mutated,
        wild_types,
        tuple(said),
        settings.unknown_letters,
        content,
    )


def _digest(tokens: bytes, begin: int) -> int:
    return int.from_bytes(hashlib.blake2b(b"%d " % begin + tokens, digest_size=8).digest(), "little")


def _without_equals(table: Table, proteins: TableProteins) -> TableProteins:
    """Leave out proteins that differ only in what was cut away: a model reads them alike, and labels would be mixed.

    Raises:
        ValueError: no other protein is left.
    """
    seen: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
    for record, letters in enumerate(proteins.sequences):
        seen[letters.encode().translate(_TOKENS), int(proteins.linkers[record, 0])].append(record)
    equal = [record for records in seen.values() if len(records) > 1 for record in records]
    if not equal:
        return proteins
    stay = np.setdiff1d(np.arange(proteins.num_records), equal)
    left_out = np.count_nonzero(np.isin(proteins.record_of_row, equal))
    first = proteins.first_rows[equal[:2]].tolist()
    found = (
        f"proteins that differ only in residues that are cut away: {len(equal)}, in {left_out} rows, such as "
        f"{table.row_word}s {' and '.join(map(table.shown, first))}"
    )
    if not len(stay):
        raise ValueError(f"{table.name}: has only {found}; raise data.crop_tokens, or keep another part of them")
    said = f"{found} are left out; raise data.crop_tokens, or keep another part, to use them"
    return replace(proteins.of_records(stay), said=(*proteins.said, said))
