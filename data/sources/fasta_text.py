"""FASTA as text: chunks of bytes become pieces of whole records, in bounded memory.

In: chunks of any size. Out: `TextPiece`s, each of which begins at a ``>`` and ends before another one or at the end of
the file. Kept: the beginning of the record that the last chunk holds only in part.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from data.sources.protein import WHITESPACE, shown
from data.transport.retries import StreamError

MAX_LINE_BYTES = 64 << 20
"""Longest line of a text file: 64 of the longest proteins. A file that is no text may have no line end at all."""
_LONG_BYTES = 1 << 20
"""A record that is longer than this and still incomplete is held without its line ends."""
_MARK = b"\xef\xbb\xbf"
_WIDE = (b"\xff\xfe", b"\xfe\xff", b">\0", b"\0>", b"\0\0")


_ALIGNMENT = "an alignment in {} format: convert it with Bio.AlignIO, to FASTA, and remove the gaps"
_LABEL_KINDS, _LEAST_LABELS = 10, 40
"""Most distinct letters of labels, and fewest of them that show it. Of 40 residues of a real protein some 15 differ."""
_LABELLED_SHARE = 0.9
_OTHER_FORMATS = {
    rb"ID +\S+ +(Reviewed|Unreviewed);": "a flat file of UniProt: give it the suffix .dat",
    rb"ID +\S": "EMBL: convert it with Bio.SeqIO to GenBank (suffix .gb), whose CDS have translations",
    rb"LOCUS +\S": "GenBank: give it the suffix .gb",
    rb"##gff-version": "GFF, which has no sequences: translate it, as with gffread -y proteins.fasta -g GENOME",
    rb"# STOCKHOLM": "Stockholm: give it the suffix .sto",
    rb"(CLUSTAL|MUSCLE|PROBCONS)": _ALIGNMENT.format("Clustal"),
    rb"\d+ +\d+ *[a-z]?$": _ALIGNMENT.format("PHYLIP"),
    rb"#NEXUS": _ALIGNMENT.format("NEXUS"),
    rb"data_\S": "an mmCIF structure: write its sequences with Bio.SeqIO ('cif-seqres'), or download them as FASTA",
    rb"(HEADER|ATOM|REMARK|TITLE|CRYST1) ": "a PDB structure: write its sequences with Bio.SeqIO ('pdb-seqres')",
    rb"@\S": "perhaps FASTQ, which holds nucleotides: give translated proteins",
}
"""What a first line shows a file to be, by patterns for `re.match`, and what to do."""


class TextPiece(NamedTuple):
    """Whole records: text[begin:end]."""

    text: bytes
    begin: int
    """Index in `text` of the first record's ``>``."""
    end: int
    """Index in `text` at which the next record begins, or the length of `text`."""
    offset: int
    """Where the first record begins in the decompressed stream, in bytes."""
    num_bytes: int
    """Bytes of these records in the stream; more than ``end - begin`` if line ends were dropped."""


def label_lines(records: Sequence[Sequence[str]]) -> str:
    """The kinds of letters of the labels, where records have a sequence and below it a line with a label a residue.

    SignalP, DeepTMHMM and TMbed write such files. Their labels are letters of amino acids, too.

    Args:
        records: the lines below the header of each, without blank ones.
    """
    pairs = [lines for lines in records if len(lines) == 2 and len(lines[0]) == len(lines[1])]
    residues, labels = (set("".join(lines[at] for lines in pairs)) for at in (0, 1))
    is_labelled = (
        len(pairs) >= _LABELLED_SHARE * len(records)
        and sum(len(lines[1]) for lines in pairs) >= _LEAST_LABELS
        and len(labels) <= _LABEL_KINDS
        and len(labels) < len(residues)
    )
    return "".join(sorted(labels)) if is_labelled else ""


def records_of(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The header of each record, and the lines below it, without whitespace and without blank ones.

    Tables and the beginning of a source are read by it; `data.sources.fasta` reads whole sources, much faster.

    Args:
        lines: text that begins with a header.
    """
    header, below = "", list[str]()
    for number, line in enumerate(lines):
        if line.startswith(">"):
            if number:
                yield header, below
            header, below = line[1:].strip(), []
        elif bare := "".join(line.split()):
            below.append(bare)
    yield header, below


def within_line_cap(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The same chunks.

    Raises:
        StreamError: a line is longer than `MAX_LINE_BYTES`.
    """
    run = 0
    for chunk in chunks:
        first = chunk.find(b"\n")
        longest = run + (len(chunk) if first < 0 else first)
        run = run + len(chunk) if first < 0 else len(chunk) - 1 - chunk.rfind(b"\n")
        if len(chunk) > MAX_LINE_BYTES and first >= 0:
            longest = max(longest, *map(len, chunk.split(b"\n")[1:]))
        if longest > MAX_LINE_BYTES:
            raise StreamError(name, f"has a line of more than {MAX_LINE_BYTES} bytes", "break the line, or remove it")
        yield chunk


def from_first_record(chunks: Iterator[bytes], name: str) -> tuple[int, Iterator[bytes]]:
    """Where the first record begins, and the chunks from there on; none if there is nothing but blank lines.

    A UTF-8 byte order mark and blank lines are skipped.

    Raises:
        ValueError: the first line that is not blank is no header, or the text is UTF-16.
    """
    head = _filled(b"", 4, chunks)
    if head.startswith(_WIDE):
        raise ValueError(
            f"{name}: not FASTA: its letters take two bytes each or four (UTF-16, UTF-32); save it as UTF-8"
        )
    offset = len(_MARK) if head.startswith(_MARK) else 0
    head = head[offset:] or next(chunks, b"")
    line_begins = True
    while not (body := head.lstrip(WHITESPACE)):
        if not head:
            return offset, iter(())
        line_begins = head.endswith(b"\n")
        offset += len(head)
        head = next(chunks, b"")
    blank = head[: len(head) - len(body)]
    if blank:
        line_begins = blank.endswith(b"\n")
    if not line_begins or not body.startswith(b">"):
        line = blank[blank.rfind(b"\n") + 1 :] + _filled(body, 240, chunks)
        line = line.partition(b"\n")[0]
        remedy = next(
            (f". It is {what}" for mark, what in _OTHER_FORMATS.items() if re.match(mark, line.strip(), re.I)), ""
        )
        raise ValueError(
            f"{name}: not FASTA: the first line is {shown(line)}, but a FASTA file starts with '>'{remedy}"
        )
    return offset + len(blank), itertools.chain((body,), chunks)


def from_record(chunks: Iterator[bytes], name: str, offset: int) -> Iterator[bytes]:
    """The same chunks, which begin at `offset`.

    Raises:
        ValueError: that is not where a record begins.
    """
    first = next(chunks, b"")
    if first and not first.startswith(b">"):
        raise ValueError(
            f"{name}: no record begins at byte {offset}, where reading is to continue: it changed since; restore it, "
            "or build its store again"
        )
    return itertools.chain((first,), chunks) if first else iter(())


def pieces(chunks: Iterator[bytes], offset: int, max_residues: int) -> Iterator[TextPiece]:
    """The text as pieces of whole records.

    Args:
        chunks: text that begins at a record.
        offset: where that record begins in the decompressed stream.
        max_residues: a longer record is cut, but stays long enough to show that it is longer.
    """
    partial: _PartialRecord | None = None
    for chunk in chunks:
        begin = 0
        if partial:
            begin = 0 if partial.ends_line and chunk.startswith(b">") else chunk.find(b"\n>") + 1 or -1
            if begin < 0:
                partial.add(chunk)
                continue
            partial.add(chunk[:begin])
            yield partial.piece(offset)
            offset += partial.num_bytes
        end = chunk.rfind(b"\n>", begin) + 1 or begin
        if end > begin:
            yield TextPiece(chunk, begin, end, offset, end - begin)
            offset += end - begin
        partial = _PartialRecord(max_residues)
        partial.add(chunk[end:])
    if partial:
        yield partial.piece(offset)


class _PartialRecord:
    """The beginning of a record; it takes memory for at most a header line, `max_residues` letters and a chunk."""

    def __init__(self, max_residues: int) -> None:
        self.num_bytes = 0
        self.ends_line = False
        self._content = bytearray()
        self._max_residues = max_residues
        self._header_bytes = 0
        """Bytes of the header line of a long record, after which whitespace is dropped; 0 for any other record."""

    def add(self, part: bytes) -> None:
        if not part:
            return
        self.num_bytes += len(part)
        self.ends_line = part.endswith(b"\n")
        content = self._content
        if self._header_bytes:
            content += part.translate(None, WHITESPACE)
        else:
            content += part
            if len(content) > _LONG_BYTES and (line_end := content.find(b"\n") + 1):
                # A space first: without it, a '>' from inside a line could become the first character of the line.
                content[line_end:] = b" " + content[line_end:].translate(None, WHITESPACE)
                self._header_bytes = line_end + 1
        if self._header_bytes:
            # One letter above the limit and a '*' after it show as much as the whole rest does.
            del content[self._header_bytes + self._max_residues + 2 :]

    def piece(self, offset: int) -> TextPiece:
        return TextPiece(bytes(self._content), 0, len(self._content), offset, self.num_bytes)


def _filled(head: bytes, size: int, chunks: Iterator[bytes]) -> bytes:
    while len(head) < size and (chunk := next(chunks, b"")):
        head += chunk
    return head
