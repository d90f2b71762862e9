"""A format of files as a class: its suffixes, and its records one after the other; records to blocks.

In: a file, compressed or not, wherever it lies. Out: a header and letters for each record; blocks. Kept: nothing.

`RecordFormat` is the base class of Biopython's formats and of the user's (docs/extending.md). FASTA and tables are
sources of their own, as they continue at a byte and choose columns.
"""

import io
import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np

from data.settings import LetterPolicy, SourceContent
from data.sources.block import START, RecordBlock, RejectedRecord, SourcePosition
from data.sources.fasta_text import within_line_cap
from data.sources.protein import RejectionReason, letters_of, rejection, shown, token_ids
from data.transport.byte_stream import ByteStream, ChunkFile, SingleFileSource
from data.transport.retries import StreamError
from zymogen.settings.options import NoOptions
from zymogen.settings.section import Section

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


class FormatError(ValueError):
    """What is wrong with a file, and what to do: no other remedy is added."""


class RecordFormat(SingleFileSource):
    """One file of a format, as a source.

    Args:
        location: a path, or any URL that fsspec opens.
        unknown_letters: what to do with bytes that are no IUPAC amino acid letter.
        content: "any" if letters are amino acids whatever they look like.
        options: what `data.format_options` says, as `Options`.
        stamp: what else the records depend on.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A dataclass of settings of its own, with `section = "data.format_options"`."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of such files, in lower case. Only those of ours are looked at: yours is named by `data.format`."""
    format: ClassVar[str] = ""
    """Its name in errors; that of the class if it has none."""
    has_lines: ClassVar[bool] = True
    """Whether it is text: a line of more than 64 MB is then refused before it is held."""

    def __init__(
        self,
        location: str,
        unknown_letters: LetterPolicy,
        content: SourceContent = "protein",
        options: Section | None = None,
        stamp: tuple[str, ...] = (),
    ) -> None:
        self.location, self.unknown_letters, self.content = location, unknown_letters, content
        self.options, self._stamp = options or NoOptions(), stamp or (self.format,)
        self.format_name = self.format or type(self).__name__

    @abstractmethod
    def records(self, file: BinaryIO, name: str) -> Iterator[Entry]:
        """Yield the records of a file, in its order: the same ones whenever it is read.

        An error ends the reading: what it says is shown after the file and the last record. A single record that is no
        protein is found by others, as in every format; if you find out more, `Entry.refusal` tells.

        Args:
            file: to be read once, decompressed; ``for line in file`` gives its lines.
            name: of the file, as errors have it.
        """

    def stamp(self) -> list[str | int]:
        """The format, and what distinguishes the file without reading it."""
        return [*self._stamp, *ByteStream(self.location).stamp()]

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """Its records from `start` on; those before it are read again and left out.

        Raises:
            ValueError: it does not exist, is damaged, cut short or not of this format (the message names the last
                record that was read), or has no record.
        """
        stream = ByteStream(self.location)
        entries = itertools.islice(self._entries(stream), start.records, None)
        yield from entry_blocks(entries, self.unknown_letters, self.content, start, lambda: stream.bytes_read)

    def _entries(self, stream: ByteStream) -> Iterator[Entry]:
        chunks = stream.chunks()
        file = ChunkFile(within_line_cap(chunks, self.name) if self.has_lines else chunks)
        number, last = 0, b""
        try:
            for entry in self.records(io.BufferedReader(file, 1 << 16), self.name):
                number, last = number + 1, _checked(entry).header
                yield entry
        except Exception as error:  # parsers raise errors of many types for damaged text
            where = f"after record {number} ({shown(last)})" if number else "before the first record"
            if file.failure:
                raise (file.failure.at(where) if isinstance(file.failure, StreamError) else file.failure) from None
            words = shown(" ".join(str(error).split()), 400).strip("'\"")
            # Biopython's assertions have no words.
            words = words or f"it ends early or is damaged ({type(error).__name__})"
            remedy = "" if isinstance(error, FormatError) else "; if it is of that format, copy or download it again"
            raise ValueError(f"{self.name}: cannot be read as {self.format_name}, {where}: {words}{remedy}") from error
        if not number:
            raise ValueError(
                f"{self.name}: no {self.format_name} record in it (empty file); remove it from data.sources or fill it"
            )


def _checked(entry: Entry) -> Entry:
    if not (isinstance(entry, Entry) and isinstance(entry.header, bytes) and isinstance(entry.letters, bytes)):
        raise FormatError(f"records() gave {entry!r}; it must yield Entry(header, letters), both of them bytes")
    return entry


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
