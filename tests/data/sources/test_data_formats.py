"""UniProt XML, Swiss-Prot, GenBank and Stockholm: the content that FASTA gives, an error where some is lost."""

import gc
import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord

import data.sources.record_format
from data.sources.block import START, SourcePosition
from data.sources.fasta import FastaSource
from data.sources.formats import FORMATS
from data.sources.record_format import Entry, RecordFormat, entry_blocks
from data.transport.byte_stream import ByteStream
from support.inputs.protein_files import (
    PROTEINS,
    contents,
    fasta,
    genpept,
    lower,
    packed,
    refused,
    stockholm,
    swiss_dat,
    uniprot_xml,
)
from support.inputs.protein_files import write as written

WRITTEN: dict[str, Callable[[], bytes]] = {
    ".xml": uniprot_xml,
    ".dat": swiss_dat,
    ".gp": genpept,
    ".sto": stockholm,
}


def source(folder: Path, suffix: str, content: bytes) -> RecordFormat:
    found = FORMATS[suffix](written(folder / f"x{suffix}", content), "refuse")
    assert isinstance(found, RecordFormat)
    return found


def genbank(*records: SeqRecord) -> bytes:
    text = io.StringIO()
    SeqIO.write(records, text, "genbank")
    return text.getvalue().encode()


@pytest.mark.parametrize("packing", ["", ".gz", ".bgz", ".zst"])
@pytest.mark.parametrize("suffix", WRITTEN)
def test_the_content_is_that_of_fasta(tmp_path: Path, suffix: str, packing: str) -> None:
    plain = FastaSource(written(tmp_path / "x.fasta", fasta()), "refuse")
    found = source(tmp_path, suffix, packed(WRITTEN[suffix](), packing))
    assert contents(found) == contents(plain)
    assert contents(found)[0] == ("P12345 Aspartate aminotransferase", PROTEINS["P12345"][1])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_both_namespaces_of_uniprot(tmp_path: Path, scheme: str) -> None:
    content = uniprot_xml(f"{scheme}://uniprot.org/uniprot")
    assert len(contents(source(tmp_path, ".xml", content))) == len(PROTEINS)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_windows_line_ends(tmp_path: Path, suffix: str) -> None:
    found = contents(source(tmp_path, suffix, WRITTEN[suffix]().replace(b"\n", b"\r\n")))
    assert [name.split()[0] for name, _ in found] == list(PROTEINS)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("suffix", WRITTEN)
def test_chunks_of_any_size(tmp_path: Path, suffix: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = WRITTEN[suffix]()
    cut = [content[at : at + size] for at in range(0, len(content), size)]
    monkeypatch.setattr(ByteStream, "chunks", lambda *_: iter(cut))
    assert len(contents(source(tmp_path, suffix, b""))) == len(PROTEINS)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_goes_on_behind_every_block(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sources.record_format, "BLOCK_RECORDS", 7)
    found = source(tmp_path, suffix, WRITTEN[suffix]())
    everything = contents(found)
    ends = [block.end for block in found.blocks()]
    assert [end.records for end in ends] == [*range(7, len(PROTEINS), 7), len(PROTEINS)]
    for end in (ends[0], ends[4], ends[-1]):
        assert contents(found, end) == everything[end.records :]


def test_blocks_end_by_residues_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sources.record_format, "BLOCK_RESIDUES", 10)
    entries = [Entry(b"p%d" % i, b"M" * n) for i, n in enumerate((4, 4, 4, 30, 1))]
    blocks = list(entry_blocks(entries, "refuse", "protein", START, lambda: 0))
    assert [block.lengths.tolist() for block in blocks] == [[4, 4, 4], [30], [1]]


def nucleotides(*features: dict[str, list[str]], name: str = "NC_1") -> SeqRecord:
    record = SeqRecord(Seq("ACGT" * 30), name, name, "a phage", annotations={"molecule_type": "DNA"})
    record.features = [SeqFeature(SimpleLocation(0, 30), "CDS", qualifiers=f) for f in features]
    return record


def test_a_genome_gives_its_translations(tmp_path: Path) -> None:
    content = genbank(
        nucleotides(
            {"protein_id": ["WP_1.1"], "locus_tag": ["b1"], "product": ["portal"], "translation": ["MKT" * 40]},
            {"locus_tag": ["b2"], "translation": ["GG"]},
            {"locus_tag": ["b3"], "pseudo": [""]},
            {"translation": ["WW"]},
        ),
        nucleotides(name="NC_2"),
        nucleotides({"protein_id": ["WP_4"], "translation": ["MV"]}, name="NC_3"),
    )
    (block,) = source(tmp_path, ".gbff", content).blocks()
    assert block.headers.tobytes() == b"WP_1.1 portal" + b"b2" + b"NC_1_cds_3" + b"WP_4"
    assert block.lengths.tolist() == [120, 2, 2, 2]
    (bad,) = block.rejected
    assert (bad.record, bad.header, bad.offset) == (4, b"NC_2 a phage", 0)
    assert "holds nucleotides (DNA) and no CDS with a /translation" in bad.reason
    assert block.end == SourcePosition(5)


def test_a_genome_is_not_held(tmp_path: Path) -> None:
    line = b" acgtacgtac" * 6 + b"\n"
    content = genbank(nucleotides({"protein_id": ["P"], "translation": ["MKT"]})).split(b"ORIGIN")[0]
    content = content.replace(b"120 bp", b"3000000 bp") + b"ORIGIN\n"
    content += b"".join(b"%9d%s" % (at, line) for at in range(1, 3_000_000, 60)) + b"//\n"
    found = source(tmp_path, ".gbff", content + genpept())
    contents(found)  # imports
    tracemalloc.start()
    assert contents(found)[:2] == [("P", "MKT"), contents(source(tmp_path, ".gp", genpept()))[0]]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000  # Biopython alone holds 12


def test_a_record_that_is_shorter_than_it_says(tmp_path: Path) -> None:
    xml = uniprot_xml().replace(b'<sequence length="2"', b'<sequence length="9"')
    assert refused(source(tmp_path, ".xml", xml)) == [
        (2, "Q00001 Short & sweet", "is damaged: it says that it has 9 residues and has 2; download it again")
    ]
    dat = swiss_dat().replace(b"\n     MUXBZOJ\n", b"\n     MUXBZO\n")
    assert refused(source(tmp_path, ".dat", dat)) == [
        (3, "Q00002 Selenoprotein <U>", "is damaged: it says that it has 7 residues and has 6; download it again")
    ]
    record = SeqRecord(Seq("MKTAYIAKQR"), "P1", "P1", "d", annotations={"molecule_type": "protein"})
    ((number, _, reason),) = refused(source(tmp_path, ".gp", genbank(record).replace(b"10 aa", b"12 aa")))
    assert number == 1
    assert reason.startswith("is damaged: Expected sequence length 12, found 10")


def test_records_without_letters(tmp_path: Path) -> None:
    sto = b"# STOCKHOLM 1.0\na MK-\nb .--\nc GGG\n//\n"
    assert refused(source(tmp_path, ".sto", sto)) == [(2, "b", "has no sequence; remove the record or fill it")]
    xml = uniprot_xml().replace(b">NV</sequence>", b"> </sequence>").replace(b'length="2"', b'length="0"')
    assert [(n, reason[:15]) for n, _, reason in refused(source(tmp_path, ".xml", xml))] == [(2, "has no sequence")]
    contig = genbank(SeqRecord(Seq(None, 10), "P1", "P1", "d", annotations={"molecule_type": "protein"}))
    assert [(n, reason[:15]) for n, _, reason in refused(source(tmp_path, ".gp", contig))] == [(1, "has no sequence")]


def test_letters_follow_the_rules_of_fasta() -> None:
    entries = [
        Entry(b"a\nb", b"mkT*"),
        Entry(b"b", b"M K\nT"),
        Entry(b"c", b"MK*T1* "),
        Entry(b"d", b"*"),
        Entry(b"", b"M"),
    ]
    (block,) = entry_blocks(entries, "refuse", "protein", SourcePosition(10), lambda: 7)
    assert (block.lengths.tolist(), block.bytes_read, block.end) == ([3, 3], 7, SourcePosition(15))
    assert block.headers.tobytes() == b"a b" + b"b"  # a header is one line
    assert block.tokens[:3].tolist() == block.tokens[3:].tolist() == [20, 15, 11]
    assert [(r.record, r.header) for r in block.rejected] == [(13, b"c"), (14, b"d"), (15, b"")]
    assert block.rejected[0].reason.startswith("has '*' at residue 3, a stop codon inside the protein (allowed: ACDEF")
    assert "data.unknown_letters = 'count'" in block.rejected[0].reason
    assert block.unknown_letters == {}

    (counted,) = entry_blocks(entries, "count", "protein", START, lambda: 0)
    assert counted.tokens.tolist() == [20, 15, 11, 20, 15, 11, 20, 15, 3, 11, 3]
    assert counted.unknown_letters == {"'*'": 1, "'1'": 1}
    assert [r.record for r in counted.rejected] == [4, 5]


def test_bounds_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, residues=5, header=3)
    entries = [Entry(b"abc", b"MKTAY"), Entry(b"b", b"MKTAYI"), Entry(b"abcd", b"M"), Entry(b"x" * 999, b"M")]
    (block,) = entry_blocks(entries, "refuse", "protein", START, lambda: 0)
    assert block.lengths.tolist() == [5]
    assert [r.reason for r in block.rejected] == [
        "has 6 residues, more than the 5 that a protein may have; remove the record",
        "has a header of 4 bytes; at most 3 are read; shorten it",
        "has a header of 999 bytes; at most 3 are read; shorten it",
    ]
    assert len(block.rejected[-1].header) == 200


def test_a_block_of_refused_records_is_empty() -> None:
    (block,) = entry_blocks([Entry(b"a", b"!")], "refuse", "protein", START, lambda: 0)
    assert [len(a) for a in (block.tokens, block.lengths, block.digests, block.headers)] == [0, 0, 0, 0]
    assert block.tokens.dtype == np.uint8
    assert len(block.rejected) == 1


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_cut_anywhere_is_an_error(tmp_path: Path, suffix: str) -> None:
    content = WRITTEN[suffix]().rstrip()
    cuts = [len(content) - n for n in (1, 2, 3, 5, 40)] + [len(content) * k // 13 for k in range(1, 13)]
    for cut in cuts:
        found = source(tmp_path, suffix, content[:cut])
        with pytest.raises(ValueError, match=r"before the first record|after record \d+ \('") as caught:
            contents(found)
        assert str(caught.value).startswith(f"{found.name}: ")
        assert "\n" not in str(caught.value)
    whole = source(tmp_path, suffix, content)  # without the last line end
    assert len(contents(whole)) == len(PROTEINS)


def test_a_cut_does_not_give_the_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sources.record_format, "BLOCK_RECORDS", 1)
    record = SeqRecord(Seq("MKTAYIAKQR" * 20), "P2", "P2", "d", annotations={"molecule_type": "protein"})
    content = genbank(replace_name(record, "P1"), record)
    cut = content.rindex(b"121 ")
    blocks = source(tmp_path, ".gp", content[:cut]).blocks()
    assert next(blocks).headers.tobytes() == b"P1 d"
    with pytest.raises(ValueError, match=r"after record 1 \('P1 d'\): it ends inside the next one, without"):
        next(blocks)


def replace_name(record: SeqRecord, name: str) -> SeqRecord:
    return SeqRecord(record.seq, name, name, record.description, annotations=record.annotations)


@pytest.mark.parametrize(
    ("suffix", "before", "after", "words"),
    [
        (".gp", b"LOCUS       A00007", b"LOKUS       A00007", r"more than the 63 entries that could be read"),
        (
            ".sto",
            b"\n#=GF SQ 3\n",
            b"\n//\n# STOCKHOLM 1.0\n",
            r"more than the 0 entries",
        ),
        (".dat", b"ID   A00007_TEST ", b"IX   A00007_TEST ", r"after record 11 \('A00006 Protein 6'\): Failed to find"),
        (".dat", b"\nOS   Sus", b"\nQQ   Sus", r"before the first record: Unknown keyword 'QQ' found"),
        (".xml", b"<accession>A00007</accession>", b"<accession>A00007<accession>", r"cannot be read as uniprot-xml"),
        (".xml", b"https://uniprot.org/uniprot", b"http://uniprot.org/uniref", r"only parses xml with namespace"),
    ],
)
def test_damage_in_the_middle(tmp_path: Path, suffix: str, before: bytes, after: bytes, words: str) -> None:
    content = WRITTEN[suffix]()
    assert before in content
    with pytest.raises(ValueError, match=words):
        contents(source(tmp_path, suffix, content.replace(before, after, 1)))


@pytest.mark.parametrize("suffix", WRITTEN)
def test_empty_missing_or_something_else(tmp_path: Path, suffix: str) -> None:
    for content in (b"", b"\n\n", fasta()):
        with pytest.raises(ValueError, match=rf"x\{suffix}: (cannot be read as|no .* record in it|has more than)"):
            contents(source(tmp_path, suffix, content))
    missing = FORMATS[suffix](str(tmp_path / f"none{suffix}"), "refuse")
    with pytest.raises(ValueError, match=r"none"):
        missing.stamp()
    with pytest.raises(ValueError, match=r"none"):
        contents(missing)


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_cut_of_the_compressed_stream_is_told_as_such(tmp_path: Path, packing: str) -> None:
    content = packed(uniprot_xml(), packing)
    with pytest.raises(ValueError, match=r"cut short") as caught:
        contents(source(tmp_path, ".xml", content[: len(content) // 2]))
    assert "cannot be read as uniprot-xml" not in str(caught.value)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_line_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    lower(monkeypatch, line=200_000)
    assert len(contents(source(tmp_path, suffix, WRITTEN[suffix]()))) == len(PROTEINS)
    before = {".xml": b"<sequence length=", ".dat": b"DE   RecName", ".gp": b"DEFINITION  ", ".sto": b"#=GS P12345"}
    endless = WRITTEN[suffix]().replace(before[suffix], b" " * 400_000 + before[suffix], 1)
    with pytest.raises(ValueError, match=r"(a line|an entry) of more than 200000 bytes[;,] .*remove (it|the entry)"):
        contents(source(tmp_path, suffix, endless))


def test_header_bytes_that_are_no_utf8_come_through(tmp_path: Path) -> None:
    content = swiss_dat().replace(b"Full=One", b"Full=\xff\xe9ne")
    (block,) = source(tmp_path, ".dat", content).blocks()
    assert b"Q00003 \xff\xe9neA00000" in block.headers.tobytes()


def test_xml_holds_no_more_than_the_entries_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sources.record_format, "BLOCK_RECORDS", 64)
    head, entries = uniprot_xml().split(b"\n<entry", 1)
    entries = b"\n<entry" + entries.removesuffix(b"</uniprot>\n")
    lower(monkeypatch, line=200_000)  # of one entry; the file has 2 million
    found = source(tmp_path, ".xml", head + entries * 60 + b"</uniprot>")
    num_records = num_elements = 0
    for block in found.blocks():
        num_records += len(block.lengths)
        if num_records > 3700:
            num_elements = max(num_elements, sum(type(held) is Element for held in gc.get_objects()))
    assert num_records == 60 * len(PROTEINS) == 3840
    assert num_elements < 1500  # what stands in 64 KiB of text; 3,700 and more if the root keeps its entries
