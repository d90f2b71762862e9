"""FASTA: a source whose records are read block by block, as fast as its bytes arrive.

In: a local file or a URL; uncompressed, gzip or zstd. Out: `RecordBlock`s. Kept: nothing between two
blocks.

Ordinary records are parsed by the compiled parser of `data.sources.fasta_kernel`. Any other record is read here, and
`data.sources.protein` decides whether it is a protein and what is wrong with it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS
from data.settings import LetterPolicy, SourceContent
from data.sources.block import START, RecordBlock, RejectedRecord, SourcePosition
from data.sources.fasta_text import (
    TextPiece,
    from_first_record,
    from_record,
    label_lines,
    pieces,
    records_of,
    within_line_cap,
)
from data.sources.protein import MAX_HEADER_BYTES, MAX_RESIDUES, WHITESPACE, letters_of, rejection, shown, token_ids
from data.transport.byte_stream import ByteStream, SingleFileSource
from data.transport.retries import ConnectionLostError, StreamError
from zymogen.compiled import compiled

BLOCK_BYTES = 15 << 18
"""Bytes of text for one block, about. For arrays of 4 MB or more NumPy requests huge pages, and clearing those takes as
long as parsing."""
_JUDGED_BYTES = 1 << 16
"""Bytes of the first records that show whether labels stand below the sequences."""
_MARGIN = 64
"""Bytes that the compiled parser may write after the end of its output."""


@dataclass(frozen=True, slots=True)
class FastaSource(SingleFileSource):
    """One FASTA file."""

    suffixes: ClassVar = (".fasta", ".fa", ".faa", ".fas", ".fsa", ".pep")
    """Usual suffixes, to find such files in a folder; a file of any other one is read as FASTA too."""
    location: str
    """A path, or any URL that fsspec opens."""
    unknown_letters: LetterPolicy
    content: SourceContent = "protein"

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """Its records from `start` on, about 4 MB of residues at a time.

        Headers are kept as bytes, so a header that is not UTF-8 is allowed.

        Raises:
            ValueError: it does not exist, is empty, no FASTA, cut short or damaged; or a line or the whole is above
                its limit. The message names the source and the record up to which it was read.
        """
        stream = ByteStream(self.location)
        reading = _FastaReader(stream, self.unknown_letters, self.content, start)
        try:
            yield from reading.blocks(stream.chunks(start.offset))
        except StreamError as error:
            raise error.at(reading.place) from error.__cause__


class _FastaReader:
    """Reading one source: the state between two blocks."""

    def __init__(
        self, stream: ByteStream, unknown_letters: LetterPolicy, content: SourceContent, start: SourcePosition
    ) -> None:
        self.stream = stream
        self.unknown_letters = unknown_letters
        self.content = content
        self.start = start
        self.num_records = start.records
        self.last_header = b""
        # Imported here, as it imports numba, which takes time.
        from data.sources.fasta_kernel import LETTER_TABLE, parse

        self._kernel, self._letter_table = compiled(parse), LETTER_TABLE
        self._lengths = np.empty((2, 0), np.int64)

    @property
    def place(self) -> str:
        """The place that reading has reached, for an error."""
        if self.num_records == 0:
            return "before the first record" if self.stream.bytes_read == 0 else "in the first record"
        return f"in or after record {self.num_records}" + (f" ({shown(self.last_header)})" if self.last_header else "")

    def blocks(self, chunks: Iterator[bytes]) -> Iterator[RecordBlock]:
        name, offset = self.stream.location, self.start.offset
        chunks = within_line_cap(chunks, name)
        if offset:
            chunks = from_record(chunks, name, offset)
        else:
            offset, chunks = from_first_record(chunks, name)
        building: _BlockBuilder | None = None
        try:
            for piece in pieces(chunks, offset, MAX_RESIDUES):
                if self.num_records == 0 and self.content == "protein":
                    self._require_no_labels(piece)
                room = piece.end - piece.begin
                if building and not building.has_room(room):
                    yield building.block(SourcePosition(self.num_records, piece.offset), self.stream.bytes_read)
                    building = None
                building = building or _BlockBuilder(max(BLOCK_BYTES, room))
                self._parse(piece, building)
                last = piece.text.rfind(b"\n>", piece.begin, piece.end) + 1 or piece.begin
                self.last_header = piece.text[last + 1 : last + 201].partition(b"\n")[0].strip(WHITESPACE)
                offset = piece.offset + piece.num_bytes
        except ConnectionLostError:  # the records that were read before are valid
            if building:
                yield building.block(SourcePosition(self.num_records, offset), self.stream.bytes_read)
            raise
        if building:
            yield building.block(SourcePosition(self.num_records, offset), self.stream.bytes_read)
        elif self.num_records == 0:
            raise ValueError(f"{name}: no FASTA record in it (empty file); remove it from data.sources or fill it")

    def _require_no_labels(self, piece: TextPiece) -> None:
        """Refuse a source whose first records have a line of labels below the sequence."""
        end = min(piece.end, piece.begin + _JUDGED_BYTES)
        last = piece.text.rfind(b"\n>", piece.begin, end) if end < piece.end else end
        lines = piece.text[piece.begin : max(last, piece.begin)].decode("latin-1").split("\n")
        if kinds := label_lines([below for _, below in records_of(lines)]):
            raise ValueError(
                f"{self.stream.location}: labels stand below the sequences, a letter for each residue "
                f"({', '.join(kinds)}), and would be read as residues; give the file without "
                "these lines"
            )

    def _parse(self, piece: TextPiece, building: "_BlockBuilder") -> None:
        most = (piece.end - piece.begin) // 4 + 1
        if self._lengths.shape[1] < most:
            self._lengths = np.empty((2, most), np.int64)
        lengths, header_lengths = self._lengths
        text = np.frombuffer(piece.text, np.uint8)
        at = piece.begin
        while at < piece.end:
            at, num_records, building.num_tokens, building.num_header_bytes = self._kernel(
                text,
                at,
                piece.end,
                MAX_HEADER_BYTES,
                MAX_RESIDUES,
                self.content == "protein",
                building.tokens,
                building.num_tokens,
                building.headers,
                building.num_header_bytes,
                lengths,
                header_lengths,
                LETTER_IDS,
                self._letter_table,
            )
            building.lengths.append(lengths[:num_records].copy())
            building.header_lengths.append(header_lengths[:num_records].copy())
            self.num_records += num_records
            if at < piece.end:
                end = piece.text.find(b"\n>", at, piece.end) + 1 or piece.end
                self._add_unusual(piece.text[at:end], piece.offset + at - piece.begin, building)
                at = end

    def _add_unusual(self, record: bytes, offset: int, building: "_BlockBuilder") -> None:
        """Add a record that the compiled parser did not read, or reject it."""
        first_line, _, lines = record.partition(b"\n")
        header = first_line[1:].strip(WHITESPACE)
        letters = letters_of(lines)
        self.num_records += 1
        if refused := rejection(header, letters, self.unknown_letters, self.content, may_be_cut=True):
            building.rejected.append(RejectedRecord(self.num_records, header[:200], offset, *refused))
            return
        building.add(token_ids(letters, building.unknown_letters), header)


class _BlockBuilder:
    """A block to which records are still added."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.tokens = np.empty(num_bytes + _MARGIN, np.uint8)
        self.headers = np.empty(num_bytes + _MARGIN, np.uint8)
        self.num_tokens = self.num_header_bytes = 0
        self.lengths: list[NDArray[np.int64]] = []
        self.header_lengths: list[NDArray[np.int64]] = []
        self.rejected: list[RejectedRecord] = []
        self.unknown_letters: Counter[str] = Counter()

    def has_room(self, num_bytes: int) -> bool:
        """Whether any text of `num_bytes` fits into what is left of the arrays."""
        return max(self.num_tokens, self.num_header_bytes) + num_bytes <= self.num_bytes

    def add(self, tokens: bytes, header: bytes) -> None:
        """Append one record."""
        self.tokens[self.num_tokens : self.num_tokens + len(tokens)] = np.frombuffer(tokens, np.uint8)
        self.num_tokens += len(tokens)
        self.headers[self.num_header_bytes : self.num_header_bytes + len(header)] = np.frombuffer(header, np.uint8)
        self.num_header_bytes += len(header)
        self.lengths.append(np.array([len(tokens)]))
        self.header_lengths.append(np.array([len(header)]))

    def block(self, end: SourcePosition, bytes_read: int) -> RecordBlock:
        tokens = self.tokens[: self.num_tokens]
        return RecordBlock(
            tokens=tokens,
            lengths=np.concatenate([np.empty(0, np.int64), *self.lengths]),
            headers=self.headers[: self.num_header_bytes],
            header_lengths=np.concatenate([np.empty(0, np.int64), *self.header_lengths]),
            rejected=tuple(self.rejected),
            unknown_letters=dict(self.unknown_letters),
            end=end,
            bytes_read=bytes_read,
        )
