"""Annotated formats to blocks, through Bio.SeqIO: UniProt XML, Swiss-Prot .dat, GenBank and GenPept, Stockholm.

In: where a file is (a path or URL, compressed or not) and which format it has. Out: blocks, as FASTA gives them.
Kept: nothing. Memory holds one record at a time: in Stockholm a whole alignment, in a genome all its features.
"""

import io
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from data.settings import LetterPolicy, SourceContent
from data.sources.block import START, RecordBlock, SourcePosition
from data.sources.entries import Entry, entry_blocks
from data.sources.fasta_text import MAX_LINE_BYTES
from data.sources.protein import RejectionReason, shown
from data.transport.byte_stream import ByteStream, ChunkFile, SingleFileSource
from data.transport.retries import StreamError

Format = Literal["uniprot-xml", "swiss", "genbank", "stockholm"]

SUFFIXES: dict[str, Format] = {
    ".xml": "uniprot-xml",
    ".dat": "swiss",
    **dict.fromkeys((".gb", ".gbk", ".gbff", ".gp", ".gpff"), "genbank"),
    **dict.fromkeys((".sto", ".stk"), "stockholm"),
}
"""Format of a file by its suffix."""

_NAMESPACES = {"{https://uniprot.org/uniprot}": "{http://uniprot.org/uniprot}"}
"""UniProt's current namespace, and the older one, which is the only one that Biopython 1.88 reads."""
_READ_OF_ENTRY = ("accession", "name", "protein", "sequence")
_NO_DESCRIPTION = ("", ".", "<unknown description>")
_GROWN_TOGETHER = re.compile(r"(LOCUS +\S*\d)( bp )")
"""A LOCUS line whose name reaches its length, as Prokka writes names of more than some 20 letters."""
_FULL_NAME = re.compile(r"Full=([^;{]+)")


@dataclass(frozen=True, slots=True)
class SeqIOSource(SingleFileSource):
    """One file that Bio.SeqIO reads."""

    location: str
    """A path, or any URL that fsspec opens."""
    format: Format
    unknown_letters: LetterPolicy
    content: SourceContent = "protein"

    def stamp(self) -> list[str | int]:
        """Format, place, size and time of change."""
        return [self.format, *ByteStream(self.location).stamp()]

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """Its records from `start` on; those before it are read again and left out.

        A nucleotide record of GenBank gives the translation of each of its CDS features, and each counts as a record.
        One without any is left out, and counts as one too.

        Raises:
            ValueError: it does not exist, is damaged, cut short or not of this format (the message names the last
                record that was read), or has no record, or nothing but nucleotide records without translations.
        """
        stream = ByteStream(self.location)
        entries = itertools.islice(self._entries(stream.chunks()), start.records, None)
        yield from entry_blocks(entries, self.unknown_letters, self.content, start, lambda: stream.bytes_read)

    def _entries(self, chunks: Iterator[bytes]) -> Iterator[Entry]:
        raw = _ChunkedFile(chunks, self.location, lines=self.format != "uniprot-xml")
        parts = _parts(_opened(raw, self.format), self.format)
        num_parts = number = num_contigs = 0
        last = b""

        def where() -> str:
            return f"after record {number} ({shown(last)})" if number else "before the first record"

        while True:
            complaints: list[str] = []
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    part = next(parts, None)
                complaints = [str(warning.message) for warning in said]
                entries = [] if part is None else list(_entries_of(part, self.format, complaints))
            except Exception as error:  # Biopython's parsers raise errors of many types for damaged text
                if raw.failure:
                    raise (raw.failure.at(where()) if isinstance(raw.failure, StreamError) else raw.failure) from None
                # Biopython's assertions have no words.
                words = str(error) or "it ends early or is damaged"
                remedy = (
                    ""
                    if isinstance(error, _WrongFormatError)
                    else "; if it is of that format, copy or download it again"
                )
                raise ValueError(
                    f"{self.location}: cannot be read as {self.format}, {where()}: {_one_line(words)}{remedy}"
                ) from error
            if part is None:
                break
            num_parts += 1
            raw.run = 0
            if raw.lines and raw.ends < num_parts:
                raise ValueError(
                    f"{self.location}: ends {where()} inside the next one, without its closing '//': the file was cut "
                    "short; copy or download it again"
                )
            for entry in entries:
                number, last = number + 1, entry.header
                num_contigs += entry.refusal is not None and entry.refusal.kind == "contig without proteins"
                yield entry
        if raw.read(1) or (raw.lines and raw.ends != num_parts):
            raise ValueError(
                f"{self.location}: has more than the {num_parts} entries that could be read as {self.format}; one of "
                "them is empty, or its first line is damaged"
            )
        if not number:
            raise ValueError(
                f"{self.location}: no {self.format} record in it (empty file); remove it from data.sources or fill it"
            )
        if num_contigs == number:
            raise ValueError(
                f"{self.location}: no protein in it: none of its {number} nucleotide records has a CDS with a "
                "/translation; annotate it, for example with Prokka or Bakta, or give its proteins as FASTA"
            )


class _ChunkedFile(ChunkFile):
    """Chunks as a file for Biopython, which itself accepts lines of any length and a text that ends too early."""

    def __init__(self, chunks: Iterator[bytes], name: str, *, lines: bool) -> None:
        super().__init__(chunks)
        self._name = name
        self._before = b"\n"
        self.lines = lines
        self.run = 0
        """Bytes since the last line end; in XML, which needs no lines, since the last entry."""
        self.ends = 0
        """How many lines began with ``//``."""

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        self._watch(bytes(buffer[:count]))
        return count

    def _watch(self, piece: bytes) -> None:
        longest = self.run = self.run + len(piece)
        if self.lines:
            self.ends += (self._before + piece).count(b"\n//")
            self._before = (self._before + piece)[-2:]
            ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n"))
            if ends.size:
                longest = int(np.diff(ends, prepend=len(piece) - self.run - 1).max())
                self.run = len(piece) - 1 - int(ends[-1])
        if longest > MAX_LINE_BYTES:
            self.failure = ValueError(
                f"{self._name}: {'a line' if self.lines else 'an entry'} of more than {MAX_LINE_BYTES} bytes; give the "
                "file the suffix of its format, or remove the entry"
            )
            raise self.failure


def _opened(raw: _ChunkedFile, format: Format) -> io.BufferedReader | io.TextIOWrapper:
    buffered: io.BufferedReader = io.BufferedReader(raw, 1 << 16)
    # A header may hold any bytes; surrogates preserve those that are not UTF-8.
    return buffered if format == "uniprot-xml" else io.TextIOWrapper(buffered, "utf-8", "surrogateescape")


def _parts(stream: io.BufferedReader | io.TextIOWrapper, format: Format) -> Iterator[Any]:
    """What Biopython gives one at a time: records, or in Stockholm alignments."""
    from Bio import AlignIO, SeqIO, SwissProt

    reader: Any = {"stockholm": AlignIO, "swiss": SwissProt}.get(format, SeqIO)
    if format == "swiss":  # SeqIO would leave out the length that the file states
        return iter(reader.parse(stream))
    parser = reader.parse(_WithoutNucleotides(stream) if format == "genbank" else stream, format)
    if format == "uniprot-xml":
        parser._data = _lean(parser._data)
    return iter(parser)


class _WrongFormatError(ValueError):
    """The file is XML, but not UniProt XML."""


class _WithoutNucleotides:
    """GenBank for Biopython, which would hold a whole chromosome, without the letters of nucleotide records."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_protein = self._in_sequence = False

    def read(self, size: int) -> str:
        text: str = self._stream.read(size)
        return text

    def readline(self) -> str:
        line: str = self._stream.readline()
        while self._in_sequence and line and not line.startswith("//"):
            line = self._stream.readline()
        if line.startswith("LOCUS "):
            self._is_protein = " aa " in line
            # Any length does that is not too short for a feature: the letters of nucleotides are not read.
            line = _GROWN_TOGETHER.sub(r"\1 1000000000\2", line)
        self._in_sequence = line.startswith("ORIGIN") and not self._is_protein
        return line


def _lean(events: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """ElementTree's events for Biopython's parser of UniProt XML, with corrections for two faults of that parser.

    It empties an entry that it has read, but the root keeps the empty element: 250 million of them for TrEMBL. And it
    knows only the older of UniProt's two namespaces. Parts of an entry that no header or sequence needs are left out.
    """
    root = None
    for event, element in events:
        if event == "start-ns":
            prefix, uri = element
            if root is None and uri.endswith("/uniref"):
                raise _WrongFormatError(
                    "it is UniRef XML, and Biopython only parses xml with namespace http://uniprot.org/uniprot; take "
                    "the FASTA file of the same UniRef release"
                )
            yield event, (prefix, _NAMESPACES.get(f"{{{uri}}}", f"{{{uri}}}")[1:-1])
            continue
        if root is None:
            root = element
            if (name := root.tag.rpartition("}")[2]) != "uniprot":
                raise _WrongFormatError(
                    f"its outermost element is <{name}>, where UniProt XML has <uniprot>; give the protein sequences "
                    "as UniProt XML or FASTA"
                )
        space, brace, tag = element.tag.rpartition("}")
        if event == "end":
            element.tag = _NAMESPACES.get(space + brace, space + brace) + tag
            if tag == "entry":
                element[:] = [child for child in element if child.tag.rpartition("}")[2] in _READ_OF_ENTRY]
        yield event, element
        if event == "end" and tag == "entry":
            root.clear()


def _entries_of(part: Any, format: Format, complaints: list[str]) -> Iterator[Entry]:
    if format == "stockholm":
        for record in part:
            yield Entry(_header(record.id, record.description), _letters(record).translate(None, b"-."))
    elif format == "genbank" and part.annotations.get("molecule_type") != "protein":
        yield from _translations(part)
    elif format == "swiss":
        full_name = _FULL_NAME.search(part.description)
        description = full_name[1] if full_name else part.description
        letters = part.sequence.encode("ascii", "replace")
        yield Entry(_header(part.accessions[0], description), letters, _damage(part.sequence_length, letters))
    else:
        letters = _letters(part)
        refused = _damage(part.annotations.get("sequence_length", len(letters)), letters)
        for complaint in complaints:  # all others are about annotations, which are not read here
            if complaint.startswith("Expected sequence length"):
                refused = RejectionReason("damaged", f"is damaged: {_one_line(complaint)} Download it again")
        yield Entry(_header(part.id, part.description), letters, refused)


def _damage(num_residues: int, letters: bytes) -> RejectionReason | None:
    if num_residues == len(letters):
        return None
    text = f"is damaged: it says that it has {num_residues} residues and has {len(letters)}; download it again"
    return RejectionReason("damaged", text)


def _translations(record: Any) -> Iterator[Entry]:
    """The proteins of a nucleotide record."""
    number = 0
    for feature in record.features:
        if feature.type == "CDS" and "translation" in feature.qualifiers:
            number += 1
            name = next(
                (feature.qualifiers[key][0] for key in ("protein_id", "locus_tag") if key in feature.qualifiers),
                f"{record.id}_cds_{number}",
            )
            product = feature.qualifiers.get("product", [""])[0]
            yield Entry(_header(name, product), _bytes(feature.qualifiers["translation"][0]))
    if not number:
        words = f"holds nucleotides ({record.annotations.get('molecule_type', 'type unknown')}) and no CDS with a "
        refused = RejectionReason(
            "contig without proteins", f"{words}/translation; if it has proteins, give them as FASTA"
        )
        yield Entry(_header(record.id, record.description), b"", refused)


def _letters(record: Any) -> bytes:
    from Bio.Seq import UndefinedSequenceError

    try:
        return bytes(record.seq or b"")
    except UndefinedSequenceError:  # a record that states its length, and has no letters
        return b""


def _header(name: str, description: str) -> bytes:
    description = description.strip()
    return _bytes(name if description in (*_NO_DESCRIPTION, name) else f"{name} {description}")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _one_line(error: object) -> str:
    return shown(" ".join(str(error).split()), 200).strip("'\"") or type(error).__name__
