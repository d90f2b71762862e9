"""What the strings of `sources` name: files, globs, formats by suffix, stores, the embedded corpus."""

import gzip
import os
from pathlib import Path

import pytest

from data.settings import CorpusSettings, DataSettings, MixedCorpus
from data.sources.biopython import GenBank, Stockholm, SwissProt, UniProtXml
from data.sources.fasta import FastaSource
from data.sources.resolve import ResolvedSources, require_files, resolve
from data.sources.tables import TableSource
from support.inputs.protein_files import LIMITS, PROTEINS, contents, fasta, uniprot_xml
from zymogen.console.safe_text import redacted


def resolved(tmp_path: Path, *sources: str | Path, clusters: str | None = None) -> ResolvedSources:
    corpus = CorpusSettings(sources=tuple(map(str, sources)), clusters=clusters)
    return resolve(corpus, "refuse", LIMITS, tmp_path / "stores")


def names(tmp_path: Path, *sources: str | Path) -> list[str]:
    return [source.name.removeprefix(f"{tmp_path}/") for source in resolved(tmp_path, *sources).sources]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("b.fasta", "a.fasta", "a.fasta.gz", "deep/er/c.fasta", "deep/d.fasta", "odd[1].fasta"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(fasta())
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind", "format"),
    [
        ("x.fasta", FastaSource, None),
        ("x.fa.gz", FastaSource, None),
        ("x.FAA.bgz", FastaSource, None),
        ("x.fas.zst", FastaSource, None),
        ("x.pep", FastaSource, None),
        ("x.txt", FastaSource, None),
        ("x", FastaSource, None),
        ("uniref50.2024_01", FastaSource, None),
        ("https://rest.uniprot.org/uniprotkb/stream?query=(proteome:UP*)&format=fasta", FastaSource, None),
        ("s3://bucket/x.fasta.zst", FastaSource, None),
        ("x.xml", UniProtXml, None),
        ("x.xml.gz", UniProtXml, None),
        ("https://host/x.dat.gz?key=1", SwissProt, None),
        ("x.gb", GenBank, None),
        ("x.gbk", GenBank, None),
        ("x.GBFF.gz", GenBank, None),
        ("x.gp", GenBank, None),
        ("x.gpff", GenBank, None),
        ("s3://bucket/x.sto", Stockholm, None),
        ("x.stk.zst", Stockholm, None),
        ("x.parquet", TableSource, ".parquet"),
        ("x.csv?sequence=a&id=b", TableSource, ".csv"),
        ("x.csv.gz", TableSource, ".csv"),
        ("x.tsv", TableSource, ".tsv"),
        ("x.json", TableSource, ".json"),
        ("https://host/x.jsonl?key=1&sequence=a", TableSource, ".jsonl"),
        ("simplecache::s3://bucket/x.parquet", TableSource, ".parquet"),
        ("datasets://someone/proteins?split=train", TableSource, ""),
    ],
)
def test_the_suffix_says_the_format(tmp_path: Path, name: str, kind: type, format: str | None) -> None:
    (source,) = resolved(tmp_path, name).sources
    assert type(source) is kind
    assert source.name == redacted(name)
    if isinstance(source, TableSource):
        assert source.suffix == format


def test_nucleotides_are_refused_by_their_suffix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.fna\.gz: \.fna files hold nucleotides.*\.faa"):
        resolved(tmp_path, "x.fna.gz")


def test_files_stand_in_the_order_of_the_recipe_and_globs_are_sorted(files: Path) -> None:
    assert names(files, files / "b.fasta", files / "a.fasta") == ["b.fasta", "a.fasta"]
    assert names(files, files / "?.fasta") == ["a.fasta", "b.fasta"]
    assert names(files, files / "deep" / "**" / "*.fasta") == ["deep/d.fasta", "deep/er/c.fasta"]
    assert names(files, files / "*ee*" / "*") == ["deep/d.fasta"]  # a folder is no file
    assert names(files, files / "odd[1].fasta") == ["odd[1].fasta"]


def test_a_glob_of_tables_keeps_its_columns(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).write_bytes(b"heavy,light\nMKT,GG\n")
    found = resolved(tmp_path, f"{tmp_path}/?.csv?sequence=light").sources
    assert [source.name for source in found] == [f"{tmp_path}/{n}.csv?sequence=light" for n in "ab"]
    assert contents(found[0]) == [("row-2", "GG")]


def test_home_and_file_urls(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(files))
    assert names(files, "~/a.fasta", "~/deep/*.fasta", f"file://{files}/odd%5B1%5D.fasta") == [
        "a.fasta",
        "deep/d.fasta",
        "odd[1].fasta",
    ]
    assert resolved(files, "~/a.fasta", clusters="~/c.tsv").clusters == files / "c.tsv"


def test_a_missing_file_is_told_when_it_is_stamped(tmp_path: Path) -> None:
    (source,) = resolved(tmp_path, tmp_path / "none.fasta").sources
    with pytest.raises(ValueError, match=r"none\.fasta: No such file or directory; check data\.sources"):
        source.stamp()
    with pytest.raises(ValueError, match=r"none\*: no file matches this pattern; check data\.sources"):
        resolved(tmp_path, tmp_path / "none*")


def test_nothing_is_read_twice(files: Path) -> None:
    os.symlink(files / "a.fasta", files / "link.fa")
    for sources in (
        [files / "a.fasta", files / "a.fasta"],
        [files / "a.fasta", files / "*.fasta"],
        [files / "a.fasta", files / "link.fa"],
        [files / "a.fasta", files / "deep" / ".." / "a.fasta"],
        [files / "a.fasta", f"file://{files}/a.fasta"],
        ["s3://b/x.fasta", "s3://b/x.fasta"],
    ):
        with pytest.raises(ValueError, match=r"data\.sources names .* twice.* count double: name it once"):
            resolved(files, *sources)
    assert len(names(files, "x.csv?sequence=heavy", "x.csv?sequence=light")) == 2
    with pytest.raises(ValueError, match="twice"):
        resolved(files, "x.csv?sequence=heavy", "./x.csv?sequence=heavy")


def test_a_finished_store_stands_alone(files: Path) -> None:
    store = files / "store"
    store.mkdir()
    with pytest.raises(ValueError, match=r"store is a folder, and no finished token store.*store/\*\.fasta'"):
        resolved(files, store)
    (store / "store.json").write_text("{}")
    assert resolved(files, store) == ResolvedSources((), None, None, store)
    with pytest.raises(ValueError, match=r"stands alone: name the files .* or mix the two with \[\[data\.mixture\]\]"):
        resolved(files, files / "a.fasta", store)


def test_a_folder_lists_what_could_be_meant(tmp_path: Path) -> None:
    def said() -> str:
        with pytest.raises(
            ValueError, match=r"is a folder, and no finished token store \(it has no store\.json\); "
        ) as caught:
            resolved(tmp_path, folder)
        return str(caught.value).partition("store.json); ")[2]

    folder = tmp_path / "my[1]"
    (folder / "deep/er").mkdir(parents=True)
    assert said() == f"name its files, for example '{folder}/*.fasta'"
    (folder / "notes.txt").touch()
    escaped = f"{tmp_path}/my[[]1]"
    (folder / "table.csv").touch()
    assert said() == f"it holds table.csv: name them, for example '{escaped}/*.csv'"
    for name in ("c.FASTA.gz", "b.FASTA.gz", "d.xml", "e.sto"):
        (folder / name).touch()
    assert said() == f"it holds b.FASTA.gz, c.FASTA.gz, d.xml and 2 more: name them, for example '{escaped}/*.FASTA.gz'"
    assert names(tmp_path, f"{escaped}/*.FASTA.gz") == ["my[1]/b.FASTA.gz", "my[1]/c.FASTA.gz"]
    (folder / "deep/store.json").touch()
    assert said() == f"it holds deep, finished: name one, for example '{folder}/deep'"


def test_files_are_required_without_reading_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.fasta").touch()  # empty, which only reading finds
    fine = ["a.fasta", "https://example.org/none.fasta", "s3://bucket/*.fasta", "datasets://none/such", "synthetic:0"]
    for place in fine:
        require_files(DataSettings(sources=(place,)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.fasta"]
    mixture = (MixedCorpus(sources=("a.fasta",)), MixedCorpus(sources=("https://example.org/x", "b.fasta")))
    for settings, message in (
        (
            DataSettings(sources=("b.fasta",)),
            r"^b\.fasta: No such file or directory; check data\.sources; .* 'a\.fasta'$",
        ),
        (DataSettings(sources=("a.fasta", "zzz/*.fa")), r"^zzz/\*\.fa: no file matches this pattern"),
        (DataSettings(sources=("a.fasta", "a.fasta")), "names a.fasta twice"),
        (DataSettings(sources=("x.fna",)), "nucleotides"),
        (DataSettings(sources=(f"file://{tmp_path}/c.fasta",)), r"c\.fasta: No such file"),
        (DataSettings(mixture=mixture), r"^b\.fasta: No such file"),
        (DataSettings(sources=("a.fasta",), clusters="b.tsv"), r"^b\.tsv: No such file .*; check data\.clusters$"),
        (DataSettings(sources=("a.fasta",), exclude="b.tsv"), r"^b\.tsv: No such file .*; check data\.exclude$"),
    ):
        with pytest.raises(ValueError, match=message):
            require_files(settings)


@pytest.mark.slow
def test_the_embedded_corpus(tmp_path: Path) -> None:
    found = resolved(tmp_path, "synthetic:3")
    assert found.families is not None
    assert (found.families.seed, found.clusters) == (3, tmp_path / "stores" / "synthetic-3" / "clusters.tsv")
    (source,) = found.sources
    assert source.name == str(tmp_path / "stores" / "synthetic-3" / "families.fasta.gz")
    assert len(contents(source)) == found.families.num_families * found.families.members_per_family
    with pytest.raises(ValueError, match=r"'synthetic:x' needs a whole number as seed"):
        resolved(tmp_path, "synthetic:x")
    for others, clusters in ((["x.fasta"], None), ([], "c.tsv")):
        with pytest.raises(ValueError, match=r"brings its own clusters and stands alone"):
            resolved(tmp_path, "synthetic:3", *others, clusters=clusters)


def test_all_formats_in_one_corpus(tmp_path: Path) -> None:
    (tmp_path / "x.fasta.gz").write_bytes(gzip.compress(fasta()))
    (tmp_path / "x.xml").write_bytes(uniprot_xml())
    first, second = resolved(tmp_path, tmp_path / "x.*").sources
    assert contents(first) == contents(second)
    assert len(contents(first)) == len(PROTEINS)


def test_standard_input_is_no_source_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.sources: '-' is standard input, a pipe or a device"):
        resolved(tmp_path, "-")
