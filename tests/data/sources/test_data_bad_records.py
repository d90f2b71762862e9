"""Bad records: the same are left out of every format and table, for the same reason, and counted by kind."""

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord

from data.alphabet import STANDARD_RESIDUES
from data.commands.stats import lines, statistics
from data.corpus.lengths import count_lengths
from data.settings import CorpusSettings, IngestSettings
from data.sources.block import RecordBlock, Source
from data.sources.fasta import FastaSource
from data.sources.protein import wrong_content
from data.sources.resolve import resolve
from data.store.build import build_into, open_or_build
from finetune.score.variant_table import read_variants
from finetune.tables.proteins import proteins_of
from finetune.tables.read import read_table
from finetune.tables.settings import TableSettings
from finetune.tables.wild_types import named_wild_types

LIMITS = IngestSettings()
GOOD = "MKTAYIAKQRQISFVKSHFSRQ"
DNA, RNA = "ATGACCGGTACGTTAGCACC", "augaccgguacguuagcacc"

BAD: dict[str, tuple[str, str, str]] = {
    "DNA": ("x1", DNA, "nucleotides"),
    "RNA in lower case": ("x1", RNA, "nucleotides"),
    "DNA with letters for several bases": ("x1", DNA * 3 + "RYK", "nucleotides"),
    "a chromosome": ("x1", DNA * 100, "nucleotides"),
    "pdb_seqres, short": ("0001_B mol:na length:8  DNA (5'-D(*CP*GP*CP*G)-3')", "CGCGAATT", "nucleotides"),
    "pdb_seqres, unknown bases": ("0002_B mol:na length:6  tRNA", "GCNXIG", "nucleotides"),
    "RCSB": ("1ABC_2|Chains B, C|DNA (5'-D(*CP*GP*CP*G)-3')|synthetic construct", "CGCG", "nucleotides"),
    "RCSB, length": ("1ABC_3|Chain D|RNA (12-MER)|Homo sapiens (9606)", "GGGGCCCCUUUU", "nucleotides"),
    "RCSB, hybrid": ("1ABC_4|Chain E|DNA/RNA (5'-R(*CP*)-D(*CP*GP)-3')|synthetic construct", "CCG", "nucleotides"),
    "RCSB, only the bases": ("1ABC_5|Chain F|5'-D(*AP*AP*A)-3'|synthetic construct", "AAA", "nucleotides"),
    **{word: ("x1", word, "missing value") for word in ("NA", "na", "nan", "NaN", "None", "null", "N/A", "-")},
    "gffread's word for nothing": ("x1", ".", "no sequence"),
    "stop inside": ("x1", "MKT*AYI", "inner stop codon"),
    "gffread's stop inside": ("x1", "MKT.AYI", "inner stop codon"),
    "gap": ("x1", "MKT-AYI", "gap"),
    "digit": ("x1", "MKT1AYI", "unknown letter"),
}
"""Header, letters and kind by what it is."""
KEPT: dict[str, tuple[str, str]] = {
    "a stop at the end": ("x1", "MKTAYI*"),
    "gffread's stop at the end": ("x1", "MKTAYI."),
    "silk": ("x1", "GAGAGS" * 8),
    "a peptide of four kinds": ("x1", "ACGTACGTACGT"),
    "glycines": ("x1", "GGGGGGGGGGGGGGGGGGGGGGGG"),
    "a DNA-binding protein": ("1ABC_1|Chain A|DNA (cytosine-5)-methyltransferase|Homo sapiens", "MKTAYIAK"),
    "the name NA": ("NA", "MKT"),
}


def table_text(header: str, letters: str, separator: str) -> bytes:
    quoted = '"' if separator == "," else ""
    return f"id{separator}sequence\ng{separator}{GOOD}\n{quoted}{header}{quoted}{separator}{letters}\n".encode()


def parquet(header: str, letters: str) -> bytes:
    packed = io.BytesIO()
    pq.write_table(pa.table({"id": ["g", header], "sequence": [GOOD, letters]}), packed)
    return packed.getvalue()


def genbank(header: str, letters: str) -> bytes:
    """A nucleotide record of two proteins."""
    record = SeqRecord(Seq("A" * 90), "C1", "C1", "contig", annotations={"molecule_type": "DNA"})
    for name, translation in (("g", GOOD), (header, letters)):
        first, _, product = name.partition(" ")
        qualifiers = {"protein_id": [first], "product": [product], "translation": [translation]}
        record.features.append(SeqFeature(SimpleLocation(0, 90, 1), "CDS", qualifiers=qualifiers))
    return genbank_text(record)


def genbank_text(*records: SeqRecord) -> bytes:
    text = io.StringIO()
    SeqIO.write(records, text, "genbank")
    return text.getvalue().encode()


FORMATS: dict[str, Callable[[str, str], bytes]] = {
    ".fasta": lambda header, letters: f">g\n{GOOD}\n>{header}\n{letters}\n".encode(),
    ".csv": lambda header, letters: table_text(header, letters, ","),
    ".tsv": lambda header, letters: table_text(header, letters, "\t"),
    ".jsonl": lambda header, letters: "".join(
        json.dumps({"id": name, "sequence": text}) + "\n" for name, text in (("g", GOOD), (header, letters))
    ).encode(),
    ".parquet": parquet,
    ".dat": lambda header, letters: "".join(
        f"ID   A_B   Reviewed;  {len(text)} AA.\nAC   x;\nDE   RecName: Full={name};\n"
        f"SQ   SEQUENCE   {len(text)} AA;  1 MW;  0 CRC64;\n     {text}\n//\n"
        for name, text in (("g", GOOD), (header, letters))
    ).encode(),
    ".gbk": genbank,
}


def source(path: Path, content: bytes, ingest: IngestSettings = LIMITS) -> Source:
    path.write_bytes(content)
    (found,) = resolve(CorpusSettings(sources=(str(path),)), "refuse", ingest, Path("unused")).sources
    return found


def left_out_of(path: Path, content: bytes, ingest: IngestSettings = LIMITS) -> list[tuple[int, str]]:
    blocks: list[RecordBlock] = list(source(path, content, ingest).blocks())
    return [(bad.record, bad.kind) for block in blocks for bad in block.rejected]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_kind_of_bad_record_in_every_format(tmp_path: Path, suffix: str) -> None:
    for what, (header, letters, kind) in BAD.items():
        found = left_out_of(tmp_path / f"x{suffix}", FORMATS[suffix](header, letters))
        assert found == [(2, kind)], what
    for what, (header, letters) in KEPT.items():
        assert left_out_of(tmp_path / f"x{suffix}", FORMATS[suffix](header, letters)) == [], what


@pytest.mark.parametrize("suffix", [".fasta", ".csv"])
def test_what_is_insisted_on_is_read(tmp_path: Path, suffix: str) -> None:
    """A peptide N-A-N, or DNA that somebody wants as letters."""
    insisted = replace(LIMITS, content="any")
    for what, (header, letters, kind) in BAD.items():
        found = left_out_of(tmp_path / f"x{suffix}", FORMATS[suffix](header, letters), insisted)
        is_read = letters.isalpha() and kind in ("nucleotides", "missing value")
        assert (found == []) == is_read, what


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_of_assays_are_judged_by_the_same_rules(tmp_path: Path, suffix: str) -> None:
    """Their rows have no headers, so that letters alone decide."""
    path = tmp_path / f"x{suffix}"
    for what, (header, letters, kind) in BAD.items():
        if header != "x1":
            continue
        path.write_bytes(FORMATS[suffix](header, letters))
        table = read_table(str(path))
        with pytest.raises(ValueError, match=r"row [23]: has no protein: its column 'sequence' "):
            proteins_of(table, TableSettings(), None)
        if kind in ("missing value", "no sequence"):
            left_out = TableSettings(rows_without_protein="leave_out")
            assert proteins_of(table, left_out, None).record_of_row.tolist() == [0, -1], what
            if not letters.isalpha():
                continue
            target = named_wild_types(table, None, {"t": GOOD}, "t.fasta")
            notes = read_variants(table, target, sequence="sequence").notes
            assert notes == {1: f"its column 'sequence' says {letters!r}"}, what
    for header, letters in KEPT.values():
        path.write_bytes(FORMATS[suffix](header, letters))
        assert proteins_of(read_table(str(path)), TableSettings(), None).num_records == 2


def test_labels_below_sequences_are_no_residues(tmp_path: Path) -> None:
    labelled = "".join(f">p{at}\n{GOOD}\n{'SO' * 11}\n" for at in range(20))
    path = tmp_path / "x.fasta"
    for text in (labelled, labelled.replace("\n", "\r\n"), labelled + f">last\n{GOOD}\n"):
        path.write_text(text, newline="")
        source = FastaSource(str(path), "refuse")
        with pytest.raises(
            ValueError, match=r"x\.fasta: labels stand below the sequences, .* \(O, S\), and would be read"
        ):
            list(source.blocks())
        any_content = FastaSource(str(path), "refuse", IngestSettings(content="any"))
        assert sum(len(block.lengths) for block in any_content.blocks()) >= 20
    # Proteins in two lines of one length: equal ones, and a second one that lacks a residue.
    for first, second in ((GOOD, GOOD), (STANDARD_RESIDUES * 3, STANDARD_RESIDUES[1:] * 3 + "LLL")):
        path.write_text("".join(f">p{at}\n{first}\n{second}\n" for at in range(20)))
        (block,) = FastaSource(str(path), "refuse").blocks()
        assert block.lengths.tolist() == [2 * len(first)] * 20


# Counts and the budget ----------------------------------------------------------------------------


def mixed(tmp_path: Path) -> tuple[Path, Counter[str]]:
    """A FASTA file with every bad record, and how many of each kind it has."""
    path = tmp_path / "mixed.fasta"
    text = "".join(f">{header}\n{letters}\n>g\n{GOOD}\n" for header, letters, _ in BAD.values())
    path.write_text(text)
    return path, Counter(kind for *_, kind in BAD.values())


def test_counts_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, kinds = mixed(tmp_path)
    ingest = IngestSettings(max_bad_fraction=0.5)
    store = open_or_build([source(path, path.read_bytes(), ingest)] * 2, tmp_path / "stores", "refuse", ingest)
    assert store.rejected == {kind: 2 * count for kind, count in sorted(kinds.items())}
    text = ", ".join(f"{2 * count} {kind}" for kind, count in sorted(kinds.items()))
    assert f": left out {2 * len(BAD)} records: {text} (rejected.jsonl)\n" in capsys.readouterr().err
    found = statistics(store, count_lengths(store))
    assert f"left out     {2 * len(BAD)} records: {text} (rejected.jsonl)" in list(lines(found))
    assert found["rejected"] == store.rejected
    written = [json.loads(line) for line in (store.folder / "rejected.jsonl").read_text().splitlines()]
    assert Counter(line["kind"] for line in written) == store.rejected


def test_an_error_names_the_budget(tmp_path: Path) -> None:
    path, _ = mixed(tmp_path)
    with pytest.raises(
        ValueError, match=r"record 1 \('x1'\) holds nucleotides .*data\.ingest\.max_bad_fraction"
    ) as caught:
        build_into(tmp_path / "store", [source(path, path.read_bytes())], "refuse", LIMITS)
    assert "data.ingest.content = 'any'" in str(caught.value)
    with pytest.raises(ValueError, match=r"allow.* such as 0\.01$"):
        build_into(tmp_path / "store", [source(path, b">p\nM1K\n")], "refuse", LIMITS)


# Alignments and stops -------------------------------------------------------------------------------


def test_stops_of_gffread_are_no_alignment(tmp_path: Path) -> None:
    """Counted as <unk>, stops inside are; dashes, or dots in records of one length, are gaps."""
    stops = "".join(f">p{n}\n{'MKTAYI' * (9 + n)}{'.MK' * 9}\n" for n in range(20)).encode()
    aligned = "".join(f">p{n}\n{'MKTAYI' * 9}{'.MK' * 9}\n" for n in range(20)).encode()
    dashes = stops.replace(b".MK", b"-MK")
    found = [wrong_content(next(blocks_of(tmp_path, text))) for text in (stops, aligned, dashes)]
    assert [reason.partition(":")[0] for reason in found] == ["", "is an alignment", "is an alignment"]


def blocks_of(tmp_path: Path, text: bytes) -> Iterator[RecordBlock]:
    (tmp_path / "x.fasta").write_bytes(text)
    return FastaSource(str(tmp_path / "x.fasta"), "count").blocks()


# GenBank ------------------------------------------------------------------------------------------


def contig(name: str, *translations: str) -> SeqRecord:
    record = SeqRecord(Seq("A" * 900), name, name, "a contig", annotations={"molecule_type": "DNA"})
    record.features.append(SeqFeature(SimpleLocation(0, 90, 1), "rRNA", qualifiers={"locus_tag": ["r"]}))
    for number, letters in enumerate(translations):
        qualifiers = {"locus_tag": [f"{name}_{number}"], "translation": [letters]}
        record.features.append(SeqFeature(SimpleLocation(0, 90, 1), "CDS", qualifiers=qualifiers))
    return record


def test_contigs_without_proteins_are_left_out_and_counted(tmp_path: Path) -> None:
    """Every draft genome has some; they need no budget, and do not use up that of bad records."""
    ingest = LIMITS
    draft = genbank_text(contig("c1"), contig("c2", GOOD, "MKT"), contig("c3"), contig("c4", "MKV"))
    sources = [source(tmp_path / f"x{n}.gbk", draft, ingest) for n in range(2)]
    store = build_into(tmp_path / "store", sources, "refuse", ingest)
    assert (store.num_records, store.rejected) == (6, {"contig without proteins": 4})
    assert [store.header(n) for n in range(3)] == ["c2_0", "c2_1", "c4_0"]
    with_bad = source(tmp_path / "y.gbk", genbank_text(contig("c1"), contig("c2", GOOD, "NA")), ingest)
    with pytest.raises(ValueError, match=r"record 3 \('c2_1'\) has 'NA', a word for a missing value"):
        build_into(tmp_path / "other", [with_bad], "refuse", ingest)
    allowed = replace(ingest, max_bad_fraction=0.34)
    assert build_into(tmp_path / "other", [with_bad], "refuse", allowed).rejected == {
        "contig without proteins": 1,
        "missing value": 1,
    }
    none = source(tmp_path / "z.gbk", genbank_text(contig("c1"), contig("c2")), ingest)
    with pytest.raises(ValueError, match=r"z\.gbk: .*: no protein in it: none of its 2 nucleotide records has a"):
        build_into(tmp_path / "none", [none], "refuse", ingest)


@pytest.mark.parametrize("name", ["NODE_1_length_145000_cov_21.7", "gnl|Prokka|ABCDEFGH_contig000123"])
def test_a_name_that_prokka_wrote_into_the_length(tmp_path: Path, name: str) -> None:
    draft = genbank_text(contig("c1", GOOD), contig("c2", "MKT")).decode()
    grown = re.sub(r"^LOCUS +c1 +900 bp", f"LOCUS       {name}900 bp", draft, flags=re.M)
    assert f" {name}900 bp    DNA " in grown
    store = build_into(tmp_path / "store", [source(tmp_path / "x.gbk", grown.encode())], "refuse", LIMITS)
    assert [store.header(n) for n in range(2)] == ["c1_0", "c2_0"]
