"""Annotated formats that Biopython reads: UniProt XML, Swiss-Prot .dat, GenBank and GenPept, Stockholm.

In: files. Out: their records. Kept: nothing. Memory holds one record at a time: in Stockholm a whole alignment, in a
genome all its features.
"""

import io
import re
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from data.sources.fasta_text import MAX_LINE_BYTES
from data.sources.protein import RejectionReason
from data.sources.record_format import Entry, FormatError, RecordFormat
from data.transport.byte_stream import ChunkFile

_NAMESPACES = {"{https://uniprot.org/uniprot}": "{http://uniprot.org/uniprot}"}
"""UniProt's current namespace, and the older one, which is the only one that Biopython 1.88 reads."""
_READ_OF_ENTRY = ("accession", "name", "protein", "sequence")
_NO_DESCRIPTION = ("", ".", "<unknown description>")
_GROWN_TOGETHER = re.compile(r"(LOCUS +\S*\d)( bp )")
"""A LOCUS line whose name reaches its length, as Prokka writes names of more than some 20 letters."""
_FULL_NAME = re.compile(r"Full=([^;{]+)")


class UniProtXml(RecordFormat):
    """UniProt XML."""

    suffixes, format, has_lines = (".xml",), "uniprot-xml", False

    def records(self, file: BinaryIO, name: str) -> Iterator[Entry]:
        """Yield a record for each entry."""
        from Bio import SeqIO

        num_bytes = 0  # since the last entry

        def pieces() -> Iterator[bytes]:
            nonlocal num_bytes
            while piece := file.read(1 << 16):
                num_bytes += len(piece)
                if num_bytes > MAX_LINE_BYTES:
                    raise FormatError(
                        f"an entry of more than {MAX_LINE_BYTES} bytes; give the file the suffix of its format, or "
                        "remove the entry"
                    )
                yield piece

        reader: Any = SeqIO
        parser = reader.parse(io.BufferedReader(ChunkFile(pieces())), self.format)
        parser._data = _lean(parser._data)
        for record in parser:
            num_bytes = 0
            yield _of_protein(record)


class _TextFormat(RecordFormat):
    """Text in which the line ``//`` ends each part: a record, or an alignment."""

    @abstractmethod
    def parts(self, lines: "_Lines") -> Iterator[Any]:
        """What Biopython gives one at a time."""

    @abstractmethod
    def entries(self, part: Any) -> Iterable[Entry]:
        """The records of a part."""

    def records(self, file: BinaryIO, name: str) -> Iterator[Entry]:
        """Yield the records of each part."""
        lines = _Lines(file)
        parts, number = self.parts(lines), 0
        while True:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                part = next(parts, None)
                entries = () if part is None else list(self.entries(part))
            if part is None:
                break
            number += 1
            if lines.ends < number:
                raise FormatError(
                    "it ends inside the next one, without its closing '//': the file was cut short; copy or download "
                    "it again"
                )
            for complaint in (str(warning.message) for warning in said):
                # All others are about annotations, which are not read here.
                if complaint.startswith("Expected sequence length"):
                    words = " ".join(complaint.split())
                    refused = RejectionReason("damaged", f"is damaged: {words} Download it again")
                    entries = [entry._replace(refusal=refused) for entry in entries]
            yield from entries
        if lines.readline() or lines.ends != number:
            raise FormatError(
                f"it has more than the {number} entries that could be read; one of them is empty, or its first line is "
                "damaged"
            )


class SwissProt(_TextFormat):
    """UniProt's text."""

    suffixes, format = (".dat",), "swiss"

    def parts(self, lines: "_Lines") -> Iterator[Any]:
        """Biopython's records of Swiss-Prot: SeqIO would leave out the length that the file states."""
        from Bio import SwissProt

        reader: Any = SwissProt
        return iter(reader.parse(lines))

    def entries(self, part: Any) -> Iterable[Entry]:
        """The one record."""
        full_name = _FULL_NAME.search(part.description)
        description = full_name[1] if full_name else part.description
        letters = part.sequence.encode("ascii", "replace")
        yield Entry(_header(part.accessions[0], description), letters, _damage(part.sequence_length, letters))


class GenBank(_TextFormat):
    """GenBank and GenPept.

    A nucleotide record gives the translation of each of its CDS features, and each counts as a record. One without any
    is left out, and counts as one too.
    """

    suffixes, format = (".gb", ".gbk", ".gbff", ".gp", ".gpff"), "genbank"

    def records(self, file: BinaryIO, name: str) -> Iterator[Entry]:
        """Yield the records.

        Raises:
            FormatError: all of them are nucleotide records without translations.
        """
        number = num_contigs = 0
        for entry in super().records(file, name):
            number += 1
            num_contigs += entry.refusal is not None and entry.refusal.kind == "contig without proteins"
            yield entry
        if num_contigs == number > 0:
            raise FormatError(
                f"no protein in it: none of its {number} nucleotide records has a CDS with a /translation; annotate "
                "it, for example with Prokka or Bakta, or give its proteins as FASTA"
            )

    def parts(self, lines: "_Lines") -> Iterator[Any]:
        """Biopython's records, without the letters of nucleotide records: it would hold a whole chromosome."""
        from Bio import SeqIO

        reader: Any = SeqIO
        lines.skips_nucleotides = True
        return iter(reader.parse(lines, self.format))

    def entries(self, part: Any) -> Iterable[Entry]:
        """The protein, or the proteins of a nucleotide record."""
        kind = part.annotations.get("molecule_type", "type unknown")
        if kind == "protein":
            return [_of_protein(part)]
        found = [feature.qualifiers for feature in part.features if feature.type == "CDS"]
        found = [qualifiers for qualifiers in found if "translation" in qualifiers]
        if not found:
            words = f"holds nucleotides ({kind}) and no CDS with a /translation; if it has proteins, give them as FASTA"
            refused = RejectionReason("contig without proteins", words)
            return [Entry(_header(part.id, part.description), b"", refused)]
        return [
            Entry(
                _header(
                    next((q[key][0] for key in ("protein_id", "locus_tag") if key in q), f"{part.id}_cds_{number}"),
                    q.get("product", [""])[0],
                ),
                _bytes(q["translation"][0]),
            )
            for number, q in enumerate(found, 1)
        ]


class Stockholm(_TextFormat):
    """Alignments in Stockholm format, of which the gaps are removed."""

    suffixes, format = (".sto", ".stk"), "stockholm"

    def parts(self, lines: "_Lines") -> Iterator[Any]:
        """Biopython's alignments."""
        from Bio import AlignIO

        reader: Any = AlignIO
        return iter(reader.parse(lines, self.format))

    def entries(self, part: Any) -> Iterable[Entry]:
        """The rows of an alignment."""
        return [Entry(_header(row.id, row.description), _letters(row).translate(None, b"-.")) for row in part]


class _Lines:
    """Text for Biopython, which itself accepts one that ends too early."""

    def __init__(self, file: BinaryIO) -> None:
        # A header may hold any bytes; surrogates preserve those that are not UTF-8.
        self._stream = io.TextIOWrapper(file, "utf-8", "surrogateescape")
        self.ends = 0
        """How many lines began with ``//``."""
        self.skips_nucleotides = False
        self._is_protein = self._in_sequence = False

    def read(self, size: int) -> str:
        """No text: Biopython asks for none, to see that it is text."""
        assert size == 0
        return ""

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if not (line := self.readline()):
            raise StopIteration
        return line

    def readline(self) -> str:
        """The next line, empty at the end."""
        line = self._stream.readline()
        if self.skips_nucleotides:
            while self._in_sequence and line and not line.startswith("//"):
                line = self._stream.readline()
            if line.startswith("LOCUS "):
                self._is_protein = " aa " in line
                # Any length does that is not too short for a feature: the letters of nucleotides are not read.
                line = _GROWN_TOGETHER.sub(r"\1 1000000000\2", line)
            self._in_sequence = line.startswith("ORIGIN") and not self._is_protein
        self.ends += line.startswith("//")
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
                raise FormatError(
                    "it is UniRef XML, and Biopython only parses xml with namespace http://uniprot.org/uniprot; take "
                    "the FASTA file of the same UniRef release"
                )
            yield event, (prefix, _NAMESPACES.get(f"{{{uri}}}", f"{{{uri}}}")[1:-1])
            continue
        if root is None:
            root = element
            if (name := root.tag.rpartition("}")[2]) != "uniprot":
                raise FormatError(
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


def _of_protein(record: Any) -> Entry:
    letters = _letters(record)
    refused = _damage(record.annotations.get("sequence_length", len(letters)), letters)
    return Entry(_header(record.id, record.description), letters, refused)


def _damage(num_residues: int, letters: bytes) -> RejectionReason | None:
    if num_residues == len(letters):
        return None
    text = f"is damaged: it says that it has {num_residues} residues and has {len(letters)}; download it again"
    return RejectionReason("damaged", text)


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
