"""Entries to blocks: what is the same for every source that is not FASTA.

In: a header and letters for each record, whatever reader gave them. Out: blocks. Kept: nothing.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from data.alphabet import LETTER_IDS, REFUSED, UNK
from data.block import Block, Position, Rejected
from data.settings import IngestSettings, LetterPolicy

BLOCK_RECORDS = 4096
BLOCK_RESIDUES = 1 << 22

_WHITESPACE = b" \t\r\n\v\f"
_TOKEN_OF = LETTER_IDS.tobytes()
_REFUSED = bytes([REFUSED])
_LETTERS = bytes(byte for byte in range(256) if LETTER_IDS[byte] != REFUSED)


class Entry(NamedTuple):
    """One record of a source, before its letters are looked at."""

    header: bytes
    """Identifier and description, as a FASTA header would have them."""
    letters: bytes
    """Its sequence; whitespace is ignored."""
    reason: str = ""
    """Why it is no protein sequence, if that is known already."""


def entry_blocks(
    entries: Iterable[Entry],
    unknown_letters: LetterPolicy,
    limits: IngestSettings,
    start: Position,
    bytes_read: Callable[[], int],
) -> Iterator[Block]:
    """Entries as blocks of up to 4,096 records or some 4 million residues, by the rules that FASTA has.

    Lower case reads as upper case, one trailing ``*`` is dropped, a record with another letter is rejected or read
    with ``<unk>``, and so are records without name or letters, or above `limits`.

    Args:
        entries: the records from `start` on.
        unknown_letters: what to do with bytes that are no IUPAC amino acid letter.
        limits: longest header and longest protein.
        start: how many records came before.
        bytes_read: says how much of the source was read so far.
    """
    entries = iter(entries)
    done = start.records
    while batch := list(_batch(entries)):
        accepted: list[bytes] = []
        headers: list[bytes] = []
        rejected: list[Rejected] = []
        counted: Counter[str] = Counter()
        for number, entry in enumerate(batch, done + 1):
            header = entry.header.replace(b"\r", b" ").replace(b"\n", b" ").strip()
            tokens = entry.letters.translate(_TOKEN_OF, _WHITESPACE)
            if entry.letters.rstrip(_WHITESPACE).endswith(b"*"):
                tokens = tokens[:-1]
            reason = entry.reason or _refusal(header, tokens, entry.letters, unknown_letters, limits)
            if reason:
                rejected.append(Rejected(number, header[:200], 0, reason))
                continue
            if _REFUSED in tokens:
                letters = entry.letters.translate(None, _WHITESPACE)[: len(tokens)]
                counted.update(repr(chr(b)) for b in letters.translate(None, _LETTERS))
                tokens = tokens.replace(_REFUSED, bytes([UNK]))
            accepted.append(tokens)
            headers.append(header)
        done += len(batch)
        flat = np.frombuffer(b"".join(accepted), np.uint8)
        lengths = np.array([len(tokens) for tokens in accepted], np.int64)
        yield Block(
            tokens=flat,
            lengths=lengths,
            headers=np.frombuffer(b"".join(headers), np.uint8),
            header_lengths=np.array([len(header) for header in headers], np.int64),
            rejected=tuple(rejected),
            unknown_letters=dict(counted),
            end=Position(done),
            bytes_read=bytes_read(),
        )


def _batch(entries: Iterator[Entry]) -> Iterator[Entry]:
    num_residues = 0
    for entry in itertools.islice(entries, BLOCK_RECORDS):
        yield entry
        num_residues += len(entry.letters)
        if num_residues >= BLOCK_RESIDUES:
            return


def _refusal(header: bytes, tokens: bytes, letters: bytes, policy: LetterPolicy, limits: IngestSettings) -> str:
    if not header:
        return "has no name; give it an identifier"
    if len(header) > limits.max_header_bytes:
        return f"has a header of {len(header)} bytes; data.ingest.max_header_bytes allows {limits.max_header_bytes}"
    if not tokens:
        return "has no sequence; remove the record or fill it"
    if len(tokens) > limits.max_residues:
        return f"has {len(tokens)} residues; data.ingest.max_residues allows {limits.max_residues}"
    at = tokens.find(_REFUSED) if policy == "refuse" else -1
    if at < 0:
        return ""
    letter = letters.translate(None, _WHITESPACE)[at : at + 1]
    return (
        f"has {shown(letter)} at residue {at + 1}, which is no amino acid letter (allowed: ACDEFGHIKLMNPQRSTVWY, "
        "BJOUXZ and one trailing '*'); correct the record, or set data.unknown_letters = 'count' to read such letters "
        "as <unk>"
    )


def shown(text: bytes | str, most: int = 60) -> str:
    """Text of a file for a message: one line of at most `most` characters, controls escaped."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return repr(words.strip("\r\n")[:most])
