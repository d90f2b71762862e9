"""What is no protein is refused: a record in the same words whatever its format, a source by its first block."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from data.settings import CorpusSettings, IngestSettings
from data.sources.block import RecordBlock
from data.sources.fasta import FastaSource
from data.sources.protein import wrong_content
from data.sources.resolve import Source, resolve
from data.store.build import build_into, open_or_build
from data.store.folder import locked
from data.store.growing import GrowingStore
from data.store.token_store import TokenStore
from support.inputs.protein_files import LIMITS
from support.inputs.protein_files import write as written
from support.inputs.stream_builders import start_builder_of
from support.places import REAL

CODES = "ALAARGASNASPCYSGLNGLUGLYHISILELEULYSMETPHEPROSERTHRTRPTYRVAL"
PROTEINS = [f"M{''.join(random.Random(i).choices('ACDEFGHIKLMNPQRSTVWY', k=59))}" for i in range(40)]
DNA = ["".join(random.Random(i).choices("ACGT", k=60)) for i in range(40)]
READS = ["".join(random.Random(i).choices("ACGT", k=18)) for i in range(140)]
"""Nucleotides too short to be known one by one."""


def fasta(sequences: list[str], name: str = ">p{} about it") -> bytes:
    return "".join(f"{name.format(i)}\n{letters}\n" for i, letters in enumerate(sequences)).encode()


def source(path: str, ingest: IngestSettings = LIMITS, letters: str = "refuse") -> Source:
    (found,) = resolve(CorpusSettings(sources=(path,)), letters, ingest, Path("unused")).sources
    return found


def first_block(tmp_path: Path, text: bytes, letters: str = "refuse") -> RecordBlock:
    return next(FastaSource(written(tmp_path / "x.fasta", text), letters).blocks())


# Records ------------------------------------------------------------------------------------------

BAD = [
    ("p\0 1", "MKT", "has a NUL byte in its header: the file is damaged or no text; remove the record"),
    ("p1", "MK\0T", "has a NUL byte at residue 3: the file is damaged or no text; remove the record"),
    ("p1", "MK-T", "has '-' at residue 3, a gap: it comes from an alignment; remove the gaps"),
    (
        "p1",
        "MK1T",
        "has '1' at residue 3, which is no amino acid letter (allowed: ACDEFGHIKLMNPQRSTVWY, BJOUXZ and one",
    ),
    ("p1", "*", "has no sequence; remove the record or fill it"),
    ("x" * 70_000, "MKT", "has a header of 70000 bytes; at most 65536 are read; shorten it"),
]


@pytest.mark.parametrize(("header", "letters", "words"), BAD)
def test_every_format_refuses_the_same_in_the_same_words(tmp_path: Path, header: str, letters: str, words: str) -> None:
    texts = {
        ".fasta": f">{header}\n{letters}\n",
        ".csv": f"id,sequence\n{header},{letters}\n",
        ".tsv": f"id\tsequence\n{header}\t{letters}\n",
        ".jsonl": json.dumps({"id": header, "sequence": letters}) + "\n",
        ".dat": f"ID   A_B   Reviewed;  {len(letters)} AA.\nAC   {header};\nDE   RecName: Full={header};\n"
        f"SQ   SEQUENCE   {len(letters)} AA;  1 MW;  0 CRC64;\n     {letters}\n//\n",
    }
    for suffix, text in texts.items():
        (block,) = source(written(tmp_path / f"x{suffix}", text.encode())).blocks()
        (bad,) = block.rejected
        assert bad.record == 1
        assert bad.reason.startswith(words), suffix
        assert "count" not in bad.reason or "1" in letters  # never for a gap


def test_nul_is_refused_also_where_other_letters_are_counted(tmp_path: Path) -> None:
    for suffix, text in ((".fasta", ">p\nM\0K\n"), (".jsonl", '{"id": "p", "sequence": "M\\u0000K"}\n')):
        (block,) = source(written(tmp_path / f"x{suffix}", text.encode()), letters="count").blocks()
        assert [bad.reason[:14] for bad in block.rejected] == ["has a NUL byte"]


# Sources ------------------------------------------------------------------------------------------


def in_codes(letters: str) -> str:
    places = map("ARNDCQEGHILKMFPSTWYV".index, letters)
    return "".join(CODES[3 * at : 3 * at + 3] for at in places)


MISTAKEN = {
    "DNA": (fasta(DNA), "holds nucleotides: 40 of its first 40 records are DNA or RNA"),
    "RNA": (fasta(["".join(s).replace("T", "U").lower() for s in DNA]), "give the translated proteins (.faa)"),
    "short DNA": (fasta(READS), "holds nucleotides: 100.0% of its first 2520 letters are A, C, G, T, U or N"),
    "short DNA with gaps unknown": (
        fasta([s[:9] + "N" * 9 for s in READS[:-1]] + ["RY" * 9]),
        "holds nucleotides: 99.3%",
    ),
    "codes": (fasta([in_codes(s) for s in PROTEINS]), "is written in three-letter codes: 100.0% of the first 7200"),
    "few codes": (fasta([in_codes("MKTAYIAKQR").title()]), "write one letter a residue (Bio.SeqUtils.seq1)"),
    "PIR": (
        fasta([f"ALPHA CRYSTALLIN CHAIN\n{s}*" for s in PROTEINS], ">P1;CRAB{}"),
        "is PIR, not FASTA: 40 of its first 40 headers begin like '>P1;'",
    ),
    "PIR, titles with digits": (
        fasta([f"crystallin 2 (b)\n{s}*" for s in PROTEINS], ">P1;C{}"),
        "the line after each is",
    ),
}


@pytest.mark.parametrize(("text", "words"), MISTAKEN.values(), ids=MISTAKEN)
def test_letters_that_are_no_residues(tmp_path: Path, text: bytes, words: str) -> None:
    reason = wrong_content(first_block(tmp_path, text))
    assert words in reason
    assert reason.endswith("if it holds proteins nevertheless, set data.ingest.content = 'any'")


def test_an_alignment_whose_gaps_would_be_counted(tmp_path: Path) -> None:
    aligned = fasta([s[:40] + "-" * 10 + ".." + s[40:] for s in PROTEINS])
    assert "is an alignment: 480 of its first 2880 letters are gaps" in wrong_content(
        first_block(tmp_path, aligned, "count")
    )
    assert wrong_content(first_block(tmp_path, fasta([*PROTEINS, "MK-T"]), "count")) == ""


@pytest.mark.parametrize(
    "sequences",
    [
        PROTEINS,
        ["MUXBZOJ"],
        ["ACGT" * 4] * 50,  # 800 residues of short records say nothing yet
        ["G" * 5000, "A" * 5000],
        ["GAGAGS" * 300, "GGAGQGGYGGLGSQGAGRGGLGGQGAGAAAAAA" * 60],  # silk of moth and spider
        ["DTASDAAAAAALTAANAKAAAELTAANAAAAAAAATAR" * 40, "AAT" * 1000],  # antifreeze proteins of fish
        ["".join(random.Random(0).choices("ACGTN", k=1900)) + "".join(random.Random(1).choices("DEFHIKLM", k=110))],
        ["ALA", "GLY", "MET", "PRO"],  # peptides of three residues
        [in_codes("MKTAYIAKQR") + s for s in PROTEINS],
    ],
)
def test_what_is_a_protein_set_after_all(tmp_path: Path, sequences: list[str]) -> None:
    assert wrong_content(first_block(tmp_path, fasta(sequences))) == ""
    assert wrong_content(first_block(tmp_path, fasta(sequences, ">P{};x"))) == ""


@pytest.mark.skipif(not REAL.exists(), reason="no protein sets of others beside the checkout")
def test_real_protein_sets_are_taken() -> None:
    paths = sorted(REAL.glob("*.gz"))
    assert len(paths) > 5
    for path in paths:
        block = next(FastaSource(str(path), "refuse").blocks())
        assert wrong_content(block) == "", path
        rows = block.lengths.cumsum()
        for at in range(1, len(rows), 97):  # a corpus of some neighbours alone would be taken, too
            few = replace(block, tokens=block.tokens[rows[at - 1] : rows[at]], lengths=block.lengths[at : at + 1])
            assert wrong_content(replace(few, headers=few.headers[:0], header_lengths=few.header_lengths[:0])) == "", (
                path
            )


TABLE = "".join(f"p{i},{s}\n" for i, s in enumerate(DNA))
KINDS = {
    "x.fasta": fasta(DNA),
    "x.csv": f"id,sequence\n{TABLE}".encode(),
    "x.tsv": f"id\tsequence\n{TABLE}".replace(",", "\t").encode(),
    "x.jsonl": "".join(json.dumps({"id": f"p{i}", "sequence": s}) + "\n" for i, s in enumerate(DNA)).encode(),
    "x.sto": f"# STOCKHOLM 1.0\n{''.join(f'p{i} {s}{chr(10)}' for i, s in enumerate(DNA))}//\n".encode(),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_source_is_judged(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, KINDS[name])
    with pytest.raises(ValueError, match=rf"^{path}: holds nucleotides: 40 of its .*data\.ingest\.content = 'any'$"):
        open_or_build([source(path)], tmp_path / "stores", "refuse", LIMITS)
    assert not list((tmp_path / "stores").glob("*/tokens.bin"))
    insisted = replace(LIMITS, content="any")
    store = open_or_build([source(path, insisted)], tmp_path / "stores", "refuse", insisted)
    assert store.num_records == 40
    # The store that was insisted on does not pass for one that was not.
    with pytest.raises(ValueError, match="holds nucleotides"):
        open_or_build([source(path)], tmp_path / "stores", "refuse", LIMITS)


def test_the_second_of_two_sources(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.fasta", fasta(PROTEINS)), written(tmp_path / "b.fasta", fasta(DNA))]
    with pytest.raises(ValueError, match=r"b.fasta: holds nucleotides"):
        build_into(tmp_path / "store", [source(path) for path in paths], "refuse", LIMITS)
    assert not (tmp_path / "store").exists()


class Stops(RuntimeError):
    """What ends a build in the middle of a source."""


def stopped_after(num_records: int, found: Source, folder: Path) -> None:
    def stop(records: int, *_: object) -> None:
        if records >= num_records:
            raise Stops

    with pytest.raises(Stops):
        build_into(folder, [found], "refuse", LIMITS, progress=stop)
    assert (folder / "progress.json").exists()


def test_the_verdict_is_given_once_and_at_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that stops after its first block is continued, although what follows alone would be refused."""
    monkeypatch.setattr("data.sources.record_format.BLOCK_RECORDS", 1000)
    monkeypatch.setattr("data.store.writer.COMMIT_BYTES", 1)
    rows = PROTEINS * 25 + READS * 100
    path = written(tmp_path / "x.csv", f"sequence\n{''.join(f'{s}{chr(10)}' for s in rows)}".encode())
    stopped_after(3000, source(path), tmp_path / "store")  # the first of three blocks is committed then: two may wait
    assert build_into(tmp_path / "store", [source(path)], "refuse", LIMITS).num_records == len(rows)
    path = written(tmp_path / "y.csv", f"sequence\n{''.join(f'{s}{chr(10)}' for s in reversed(rows))}".encode())
    with pytest.raises(ValueError, match="holds nucleotides"):
        build_into(tmp_path / "other", [source(path)], "refuse", LIMITS)


def test_too_little_at_the_beginning_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a connection that broke off within the first lines."""
    monkeypatch.setattr("data.store.writer.COMMIT_BYTES", 1)
    path = written(tmp_path / "x.csv", f"sequence\n{''.join(f'{s}{chr(10)}' for s in READS)}".encode())
    with monkeypatch.context() as patch:
        patch.setattr("data.sources.record_format.BLOCK_RECORDS", 3)
        stopped_after(9, source(path), tmp_path / "store")
    with pytest.raises(ValueError, match="holds nucleotides"):
        build_into(tmp_path / "store", [source(path)], "refuse", LIMITS)
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_stream_says_so_before_anything_is_there(tmp_path: Path) -> None:
    found = source(written(tmp_path / "x.fasta", fasta(DNA)))
    folder = start_builder_of([found], "refuse", LIMITS, tmp_path)
    with pytest.raises(ValueError, match=r"x.fasta: holds nucleotides.*data\.ingest\.content = 'any'"):
        GrowingStore(folder).wait(1)
    with locked(folder):  # the builder has ended
        assert not (folder / "store.json").exists()
    insisted = replace(LIMITS, content="any")
    found = source(found.name, insisted)
    folder = start_builder_of([found], "refuse", insisted, tmp_path)
    assert GrowingStore(folder).wait(40) == 40
    with locked(folder):
        assert TokenStore(folder).num_records == 40
