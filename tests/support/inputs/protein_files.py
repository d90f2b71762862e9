"""One set of proteins in every format that a source may have, and what a source gives, for the tests of sources."""

import csv
import gzip
import io
import json
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

from data.alphabet import decode
from data.settings import IngestSettings
from data.sources.block import START, Source, SourcePosition
from data.sources.content_digest import content_digests

LIMITS = IngestSettings()

PROTEINS: dict[str, tuple[str, str]] = {
    "P12345": ("Aspartate aminotransferase", "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFE"),
    "Q00001": ("Short & sweet", "NV"),
    "Q00002": ("Selenoprotein <U>", "MUXBZOJ"),
    "Q00003": ("One", "M"),
    **{f"A{i:05}": (f"Protein {i}", "ACDEFGHIKLMNPQRSTVWY"[i % 20 :] + "MKV" * (i % 50 + 1)) for i in range(60)},
}
"""Description and sequence by id."""

LETTERS = [letters.replace("J", "<unk>") for _, letters in PROTEINS.values()]


def fasta() -> bytes:
    return "".join(f">{name} {about}\n{letters}\n" for name, (about, letters) in PROTEINS.items()).encode()


def uniprot_xml(namespace: str = "https://uniprot.org/uniprot") -> bytes:
    """As UniProt writes it, with more children than are read."""
    entries = "".join(
        f'<entry dataset="Swiss-Prot" created="1988-04-01" modified="2024-01-24" version="7">\n'
        f"  <accession>{name}</accession>\n  <accession>{name[::-1]}</accession>\n  <name>{name}_TEST</name>\n"
        f"  <protein><recommendedName><fullName>{escape(about)}</fullName></recommendedName></protein>\n"
        f'  <organism><name type="scientific">Sus scrofa</name><dbReference type="NCBI" id="9823"/></organism>\n'
        f'  <feature type="chain"><location><begin position="1"/><end status="odd"/></location></feature>\n'
        f'  <sequence length="{len(letters)}" mass="1" checksum="0" version="1">{letters}</sequence>\n</entry>\n'
        for name, (about, letters) in PROTEINS.items()
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<uniprot xmlns="{namespace}">\n{entries}</uniprot>\n'.encode()


def swiss_dat() -> bytes:
    lines = []
    for name, (about, letters) in PROTEINS.items():
        lines += [
            f"ID   {name}_TEST              Reviewed;         {len(letters)} AA.",
            f"AC   {name}; {name[::-1]};",
            "DT   01-APR-1988, integrated into UniProtKB/Swiss-Prot.",
            f"DE   RecName: Full={about} {{ECO:0000305}};",
            "DE            EC=2.6.1.1;",
            "OS   Sus scrofa (Pig).",
            f"SQ   SEQUENCE   {len(letters)} AA;  1 MW;  0000000000000000 CRC64;",
        ]
        for at in range(0, len(letters), 60):
            row = letters[at : at + 60]
            lines.append("     " + " ".join(row[i : i + 10] for i in range(0, len(row), 10)))
        lines.append("//")
    return ("\n".join(lines) + "\n").encode()


def records(molecule_type: str = "protein") -> list[SeqRecord]:
    return [
        SeqRecord(Seq(letters), name, name, about, annotations={"molecule_type": molecule_type})
        for name, (about, letters) in PROTEINS.items()
    ]


def genpept() -> bytes:
    text = io.StringIO()
    SeqIO.write(records(), text, "genbank")
    return text.getvalue().encode()


def stockholm() -> bytes:
    """Two alignments, gaps of both kinds."""
    width = max(len(letters) for _, letters in PROTEINS.values()) + 4
    text = io.StringIO()
    every = records()
    for record in every:
        letters = str(record.seq)
        half = len(letters) // 2
        record.seq = Seq(letters[:half] + "-.-." + letters[half:] + "." * (width - 4 - len(letters)))
    SeqIO.write(every[:3], text, "stockholm")
    SeqIO.write(every[3:], text, "stockholm")
    return text.getvalue().encode()


def rows() -> list[dict[str, str]]:
    return [{"id": name, "about": about, "sequence": letters} for name, (about, letters) in PROTEINS.items()]


def table(suffix: str) -> bytes:
    if suffix == ".parquet":
        packed = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows()), packed, row_group_size=20)
        return packed.getvalue()
    if suffix in (".json", ".jsonl"):
        lines = [json.dumps(row) for row in rows()]
        return ("\n".join(lines) if suffix == ".jsonl" else f"[{', '.join(lines)}]").encode()
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "about", "sequence"], delimiter="\t" if suffix == ".tsv" else ",")
    writer.writeheader()
    writer.writerows(rows())
    return text.getvalue().encode()


def packed(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
    if suffix == ".bgz":  # a gzip of many members, as bgzip writes it
        return b"".join(gzip.compress(content[at : at + 1000]) for at in range(0, len(content), 1000))
    return zstd.compress(content) if suffix == ".zst" else content


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def contents(source: Source, start: SourcePosition = START) -> list[tuple[str, str]]:
    """(header, letters) of every record, the arrays of every block checked against each other; none may be refused."""
    found: list[tuple[str, str]] = []
    before = start.records
    for block in source.blocks(start):
        assert block.rejected == ()
        before += len(block.lengths)
        assert block.end.records == before
        assert block.digests.tolist() == content_digests(block.tokens, block.lengths).tolist()
        assert (block.tokens.dtype, block.lengths.dtype, block.header_lengths.dtype) == ("u1", "i8", "i8")
        token_at = header_at = 0
        for length, header_length in zip(block.lengths.tolist(), block.header_lengths.tolist(), strict=True):
            header = block.headers[header_at : header_at + header_length].tobytes().decode()
            found.append((header, decode(block.tokens[token_at : token_at + length])))
            token_at, header_at = token_at + length, header_at + header_length
        assert (token_at, header_at) == (len(block.tokens), len(block.headers))
    return found


def refused(source: Source) -> list[tuple[int, str, str]]:
    """(record, header, reason) of what was left out."""
    return [(r.record, r.header.decode(), r.reason) for block in source.blocks() for r in block.rejected]


_BOUNDS = {
    "residues": ("data.sources.protein.MAX_RESIDUES", "data.sources.fasta.MAX_RESIDUES"),
    "header": ("data.sources.protein.MAX_HEADER_BYTES", "data.sources.fasta.MAX_HEADER_BYTES"),
    "line": ("data.sources.fasta_text.MAX_LINE_BYTES", "data.sources.biopython.MAX_LINE_BYTES"),
    "inflation": ("data.transport.byte_stream.MAX_INFLATION",),
    "size": ("data.transport.byte_stream.MAX_BYTES",),
}


def lower(patch: pytest.MonkeyPatch, **bounds: float) -> None:
    """Lower bounds of sources, by the words of `_BOUNDS`, so that a small file exceeds them."""
    for word, value in bounds.items():
        for name in _BOUNDS[word]:
            patch.setattr(name, value)
