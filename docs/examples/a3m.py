"""A3M, in which HH-suite and ColabFold write alignments, as a source format.

In a recipe beside this file:

[data]
sources = ["alignments/*.a3m"]
format = "a3m:A3M"
format_options.max_gap_fraction = 0.5
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from data.sources.protein import RejectionReason
from data.sources.record_format import Entry, RecordFormat
from zymogen.settings.section import IDENTITY, Section, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Section):
    """Settings that only A3M has."""

    section: ClassVar = "data.format_options"
    max_gap_fraction: float = setting(IDENTITY, "rows with more gaps are bad records", 1.0, at_least=0, at_most=1)


class A3M(RecordFormat):
    """The rows of an alignment, without gaps; residues that the query lacks are lower case."""

    Options = Options

    def records(self, file: BinaryIO, name: str) -> Iterator[Entry]:
        """Yield the rows."""
        header, row = b"", bytearray()
        for number, line in enumerate(file, 1):
            line = line.strip()
            if line.startswith(b">"):
                if header:
                    yield self._entry(header, row)
                header, row = line[1:].strip() or b"row of line %d" % number, bytearray()
            elif header:
                row += line
            elif line and not line.startswith(b"#"):  # ColabFold's first line has lengths and copies of chains
                raise ValueError(f"line {number} is {line[:40]!r}, where the first row begins with '>'")
        if header:
            yield self._entry(header, row)

    def _entry(self, header: bytes, row: bytearray) -> Entry:
        aligned = row.translate(None, b"abcdefghijklmnopqrstuvwxyz.")
        gaps, refusal = aligned.count(b"-") / max(1, len(aligned)), None
        if gaps > self.options.max_gap_fraction:
            refusal = RejectionReason("gap", f"has {gaps:.0%} gaps; raise data.format_options.max_gap_fraction")
        return Entry(header, bytes(row.translate(None, b"-.")).upper(), refusal)
