"""FASTA to records: plain or gzip, any line length, one clear error for anything that is not protein FASTA.

In: a path. Out: `Record`s in file order, residues already as token ids. Kept: nothing.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from isal import igzip, igzip_lib
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS, REFUSED, UNK
from data.settings import LetterPolicy

_WHITESPACE = b" \t\r\n\v\f"
_ACCESSION_FIELD = {b"gi": 3, b"gnl": 2, b"pat": 2}
"""Which field of an identifier with bars is the accession, by its first; the second for any other."""
_GZIP_MAGIC = b"\x1f\x8b"
# isal's stub calls its error class an instance.
_DAMAGED = (cast(type[Exception], igzip_lib.IsalError), OSError)


class Record(NamedTuple):
    """One FASTA record."""

    header: bytes
    """The header line without ``>`` and line end."""
    residues: NDArray[np.uint8]
    """(length,) token ids, at least one."""

    @property
    def names(self) -> tuple[bytes, ...]:
        """By what other files may refer to the record: the header's first word, and the accession inside it.

        ``sp|P12345|NAME_HUMAN`` has the accession P12345, ``gi|1234|gb|AAP56351.2|`` has AAP56351.2; MMseqs2's tables
        give the accession alone.
        """
        word = self.header.split(maxsplit=1)[0]
        fields = word.split(b"|")
        field = _ACCESSION_FIELD.get(fields[0], 1)
        return (word, fields[field]) if field < len(fields) and fields[field] else (word,)


def records(path: Path, unknown_letters: LetterPolicy, counted: Counter[str] | None = None) -> Iterator[Record]:
    """The records of one FASTA file, streamed.

    One trailing ``*`` is dropped (the stop codon of a translated gene). Compression is told by content, not by name.

    Args:
        path: plain or gzip FASTA (bgzip too: it is a gzip of several members).
        unknown_letters: what to do with bytes that are no IUPAC amino acid letter.
        counted: with the policy "count", receives how often each such letter was read as ``<unk>``.

    Raises:
        ValueError: no such file; empty; not FASTA; a record without a name or sequence; a refused letter; a
            compressed stream that is cut short or damaged. It names the file, the record and what to do.
    """
    number = 0
    header = b""
    try:
        with _open(path) as stream:
            lines: list[bytes] = []
            for line in stream:
                if line.startswith(b">"):
                    if number:
                        yield _record(path, number, header, lines, unknown_letters, counted)
                    number += 1
                    header = line[1:].strip()
                    if not header:
                        raise ValueError(
                            f"{path}: record {number} has a header without a name; write an identifier after '>'"
                        )
                    lines = []
                elif number:
                    lines.append(line)
                elif line.strip():
                    raise ValueError(
                        f"{path}: not FASTA: the first line is {_shown(line)}, but a FASTA file starts with '>'"
                    )
            if number:
                yield _record(path, number, header, lines, unknown_letters, counted)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; check data.sources") from None
    except EOFError:
        raise ValueError(
            f"{path}: the gzip stream ends early, {_after(number, header)}: the file was cut short; "
            "copy or download it again"
        ) from None
    except _DAMAGED as error:
        raise ValueError(f"{path}: cannot be read, {_after(number, header)}: {error}") from error
    if not number:
        raise ValueError(f"{path}: no FASTA record in it (empty file); remove it from data.sources or fill it")


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as raw:
        compressed = raw.read(2) == _GZIP_MAGIC
    return cast(IO[bytes], igzip.IGzipFile(path, "rb")) if compressed else path.open("rb")


def _record(
    path: Path,
    number: int,
    header: bytes,
    lines: list[bytes],
    unknown_letters: LetterPolicy,
    counted: Counter[str] | None,
) -> Record:
    letters = b"".join(lines).translate(None, _WHITESPACE)
    if letters.endswith(b"*"):
        letters = letters[:-1]
    if not letters:
        raise ValueError(f"{path}: record {number} ({_shown(header)}) has no sequence; remove the record or fill it")
    raw = np.frombuffer(letters, np.uint8)
    residues = LETTER_IDS[raw]
    refused = residues == REFUSED
    if refused.any():
        if unknown_letters == "refuse":
            at = int(refused.argmax())
            raise ValueError(
                f"{path}: record {number} ({_shown(header)}) has {_shown(letters[at : at + 1])} at residue {at + 1}, "
                "which is no amino acid letter (allowed: ACDEFGHIKLMNPQRSTVWY, BJOUXZ and one trailing '*'); "
                "correct the record, or set data.unknown_letters = 'count' to read such letters as <unk>"
            )
        residues[refused] = UNK
        if counted is not None:
            for byte, times in zip(*np.unique(raw[refused], return_counts=True), strict=True):
                counted[repr(chr(byte))] += int(times)
    return Record(header, residues)


def _after(number: int, header: bytes) -> str:
    return f"in or after record {number} ({_shown(header)})" if number else "before the first record"


def _shown(text: bytes) -> str:
    """Bytes for a message: at most 60 characters, controls escaped so that no file can steer a terminal."""
    return repr(text.strip(b"\r\n")[:60].decode("utf-8", "replace"))
