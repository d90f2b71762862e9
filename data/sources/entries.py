"""Entries to blocks: what every source does that is not FASTA.

In: a header and letters for each record, from any reader. Out: blocks. Kept: nothing.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from data.settings import LetterPolicy, SourceContent
from data.sources.block import RecordBlock, RejectedRecord, SourcePosition
from data.sources.protein import RejectionReason, letters_of, rejection, token_ids

BLOCK_RECORDS = 4096
BLOCK_RESIDUES = 1 << 22


class Entry(NamedTuple):
    """One record of a source, before its letters are checked."""

    header: bytes
    """Identifier and description, as in a FASTA header."""
    letters: bytes
    """Its sequence; whitespace is ignored."""
    refusal: RejectionReason | None = None
    """Why it is not a protein sequence, if the reader found out."""


def entry_blocks(
    entries: Iterable[Entry],
    unknown_letters: LetterPolicy,
    content: SourceContent,
    start: SourcePosition,
    bytes_read: Callable[[], int],
) -> Iterator[RecordBlock]:
    """Entries as blocks of up to 4,096 records or about 4 million residues.

    As with FASTA, `data.sources.protein` decides which records are no proteins.

    Args:
        entries: the records from `start` on.
        unknown_letters: what to do with bytes that are no IUPAC amino acid letter.
        content: "any" if letters are amino acids whatever they look like.
        start: how many records come before `entries`.
        bytes_read: returns how many bytes of the source were read so far.
    """
    entries = iter(entries)
    done = start.records
    while batch := list(_batch(entries)):
        accepted: list[bytes] = []
        headers: list[bytes] = []
        rejected: list[RejectedRecord] = []
        counted: Counter[str] = Counter()
        for number, entry in enumerate(batch, done + 1):
            header = entry.header.replace(b"\r", b" ").replace(b"\n", b" ").strip()
            letters = letters_of(entry.letters)
            if refused := entry.refusal or rejection(header, letters, unknown_letters, content):
                rejected.append(RejectedRecord(number, header[:200], 0, *refused))
                continue
            accepted.append(token_ids(letters, counted))
            headers.append(header)
        done += len(batch)
        yield RecordBlock(
            tokens=np.frombuffer(b"".join(accepted), np.uint8),
            lengths=np.array([len(tokens) for tokens in accepted], np.int64),
            headers=np.frombuffer(b"".join(headers), np.uint8),
            header_lengths=np.array([len(header) for header in headers], np.int64),
            rejected=tuple(rejected),
            unknown_letters=dict(counted),
            end=SourcePosition(done),
            bytes_read=bytes_read(),
        )


def _batch(entries: Iterator[Entry]) -> Iterator[Entry]:
    num_residues = 0
    for entry in itertools.islice(entries, BLOCK_RECORDS):
        yield entry
        num_residues += len(entry.letters)
        if num_residues >= BLOCK_RESIDUES:
            return
