"""Blocks: what every source gives, whatever its format: consecutive records as flat arrays, and where they end.

In: nothing; these are the types. Kept: nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.sources.content_digest import content_digests


class SourcePosition(NamedTuple):
    """A place between two records of a source, from which reading can continue."""

    records: int = 0
    """Number of records before it, rejected ones included."""
    offset: int = 0
    """Bytes of the decompressed stream before it; 0 if the format has no such offset."""


START = SourcePosition()
"""The beginning of a source."""


Kind = Literal[
    "bad header",
    "contig without proteins",
    "damaged",
    "gap",
    "inner stop codon",
    "misaligned row",
    "missing value",
    "no sequence",
    "nucleotides",
    "too long",
    "unknown letter",
]
"""Why a record was left out, in the words by which a build counts them."""

JUDGED = ("missing value", "nucleotides")
"""Kinds of records whose letters could be amino acids."""


def num_bad(rejected: Mapping[str, int]) -> int:
    """How many of the records that were left out, counted by kind, are bad.

    A contig without proteins is not: every draft genome has some, and nothing of them is lost.
    """
    return sum(count for kind, count in rejected.items() if kind != "contig without proteins")


class RejectedRecord(NamedTuple):
    """A record that is not a protein sequence."""

    record: int
    """Its number in the source, from 1."""
    header: bytes
    """The beginning of its header, at most 200 bytes."""
    offset: int
    """Where it begins in the decompressed stream, in bytes; 0 if the format has no such offset."""
    kind: Kind
    reason: str
    """What is wrong with it and what to change, as the rest of a sentence that begins "record 7 ('name') "."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBlock:
    """Consecutive records of one source; at least one, rejected ones included."""

    tokens: NDArray[np.uint8]
    """(residues,) token ids of all accepted records, concatenated."""
    lengths: NDArray[np.int64]
    """(records,) number of residues of each, at least 1."""
    headers: NDArray[np.uint8]
    """(bytes,) header lines of all accepted records, without ``>`` and line end, concatenated."""
    header_lengths: NDArray[np.int64]
    """(records,) number of bytes of each header."""
    rejected: tuple[RejectedRecord, ...] = ()
    """The records among these that were left out, in order."""
    unknown_letters: Mapping[str, int] = field(default_factory=dict)
    """How often each letter outside the alphabet was read as ``<unk>`` (policy "count")."""
    end: SourcePosition
    """Where the source continues after this block."""
    bytes_read: int
    """Stored bytes of the source that were read so far; only the progress line uses them."""

    @property
    def rejected_kinds(self) -> Counter[str]:
        """How many records were left out, by kind."""
        return Counter(record.kind for record in self.rejected)

    @property
    def digests(self) -> NDArray[np.uint64]:
        """(records,) digest of each record; computed at each call."""
        return content_digests(self.tokens, self.lengths)


class Source(Protocol):
    """One file, URL or table."""

    @property
    def name(self) -> str:
        """The name that errors and store.json use for it."""

    @property
    def num_bytes(self) -> int | None:
        """Its size as stored; None if it is not known."""

    def stamp(self) -> list[str | int]:
        """What distinguishes this source from another without reading it: place, size, time of change.

        Raises:
            ValueError: it does not exist.
        """

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """Its records from `start` on, which is `START` or the `end` of a block that it gave before.

        Raises:
            ValueError: the source as a whole cannot be read; the message names the source and what to do. A single bad
                record raises nothing; it is in `RecordBlock.rejected`.
        """
