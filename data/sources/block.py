"""Blocks: what every source gives, whatever its format: a stretch of records as flat arrays, and where it ends.

In: nothing; these are the types. Kept: nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.sources.content_digest import content_digests


class Position(NamedTuple):
    """A place between two records of a source, from which reading can go on."""

    records: int = 0
    """Records before it, rejected ones included."""
    offset: int = 0
    """Bytes of the decompressed stream before it; 0 where the format has no such offset."""


START = Position()
"""The beginning of a source."""


class Rejected(NamedTuple):
    """A record that is no protein sequence."""

    record: int
    """Its number in the source, from 1."""
    header: bytes
    """Its header as far as it was read, at most 200 bytes."""
    offset: int
    """Where it begins in the decompressed stream, in bytes; 0 where the format has no such offset."""
    reason: str
    """What is wrong with it and what to change, to be read behind "record 7 ('name') "."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive records of one source; at least one, counting the rejected."""

    tokens: NDArray[np.uint8]
    """(residues,) token ids of all accepted records, one behind the other."""
    lengths: NDArray[np.int64]
    """(records,) residues of each, at least 1."""
    headers: NDArray[np.uint8]
    """(bytes,) header lines of all, without ``>`` and line end, one behind the other."""
    header_lengths: NDArray[np.int64]
    """(records,) bytes of each header."""
    rejected: tuple[Rejected, ...] = ()
    """Records of this stretch that were left out, in order."""
    unknown_letters: Mapping[str, int] = field(default_factory=dict)
    """How often each letter outside the alphabet was read as ``<unk>`` (policy "count")."""
    end: Position
    """Where the source goes on behind this block."""
    bytes_read: int
    """Bytes of the source, as stored, that were read so far; for the progress line alone."""

    @property
    def digests(self) -> NDArray[np.uint64]:
        """(records,) `content_digest` of each; computed at each call."""
        return content_digests(self.tokens, self.lengths)


class Source(Protocol):
    """One file, URL or table."""

    @property
    def name(self) -> str:
        """As errors and store.json call it."""

    @property
    def num_bytes(self) -> int | None:
        """Its size as stored, None where it is not known."""

    def stamp(self) -> list[str | int]:
        """What tells this source from another without reading it: where it is, size, time of change.

        Raises:
            ValueError: it is not there.
        """

    def blocks(self, start: Position = START) -> Iterator[Block]:
        """Its records from `start` on, which is (0, 0) or the `end` of a block that it gave before.

        Raises:
            ValueError: the source as a whole cannot be read; it names the source and what to do. A single bad record
                raises nothing, it is in `Block.rejected`.
        """
