"""Tables through `datasets`: no row lost or changed on the way, and one clear error for what cannot be read."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data.sources.record_format
from data.sources.block import SourcePosition
from data.sources.tables import TableSource, split_query
from support.inputs.faulty_server import Site, serving
from support.inputs.protein_files import LETTERS, PROTEINS, contents, lower, packed, refused, table
from support.inputs.protein_files import write as written

EVERYTHING = list(zip(PROTEINS, LETTERS, strict=True))


def source(location: str | Path, policy: str = "refuse") -> TableSource:
    """As `data.sources.resolve` makes it."""
    location = str(location)
    place = Path(location.partition("?")[0])
    while place.suffix in (".gz", ".zst"):
        place = place.with_suffix("")
    return TableSource(location, "" if location.startswith("datasets://") else place.suffix, policy)


def error(location: str | Path) -> str:
    with pytest.raises(ValueError, match=r".+") as caught:
        contents(source(location))
    message = str(caught.value)
    assert message.startswith(f"{location}: ")
    assert message.count(f"{location}: ") == 1  # not an error inside an error
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set as a folder: two Parquet files to train on, and one to test."""
    folder = tmp_path_factory.mktemp("dataset")
    rows = pq.read_table(pa.BufferReader(table(".parquet")))
    pq.write_table(rows.slice(0, 40), folder / "train-00000.parquet")
    pq.write_table(rows.slice(40), folder / "train-00001.parquet")
    pq.write_table(rows.slice(0, 1), folder / "test-00000.parquet")
    return folder


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".json", ".jsonl"])
def test_every_kind_of_table(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = source(written(tmp_path / f"x{suffix}", table(suffix)))
    assert contents(found) == EVERYTHING
    assert found.name.endswith(f"x{suffix}")

    monkeypatch.setattr(data.sources.record_format, "BLOCK_RECORDS", 9)
    ends = [block.end for block in found.blocks()]
    assert [end.records for end in ends] == [9, 18, 27, 36, 45, 54, 63, 64]
    for end in (ends[0], ends[4], ends[-1]):
        assert contents(found, end) == EVERYTHING[end.records :]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_compressed_tables(tmp_path: Path, suffix: str, packing: str) -> None:
    assert contents(source(written(tmp_path / f"x{suffix}{packing}", packed(table(suffix), packing)))) == EVERYTHING


def test_text_of_a_csv_stays_as_it_is(tmp_path: Path) -> None:
    # Proteins called 007, NA and nan; numbers and words in one column; letters that pandas reads as a number.
    path = written(tmp_path / "x.csv", b'id,seq,mass\n007,NV,1\nNA,TRVE,\nnan,NAI,x\n1e5,INF,2.5\nTrue,"MK\nT",\n')
    assert contents(source(path)) == [("007", "NV"), ("NA", "TRVE"), ("nan", "NAI"), ("1e5", "INF"), ("True", "MKT")]


def test_quotation_marks_of_a_tsv_are_letters(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv", b'id\tname\tseq\na\t"5 prime\tMKT\nb\tc\tGG\nd\te"\tWW\n')
    assert contents(source(path)) == [("a", "MKT"), ("b", "GG"), ("d", "WW")]


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", b"\xef\xbb\xbfid,seq\r\na,MKT\r\nb,GG\r\n")
    assert contents(source(path)) == [("a", "MKT"), ("b", "GG")]


@pytest.mark.parametrize(
    ("columns", "query", "names"),
    [
        (["Accession", "Protein_Sequence", "name"], "", ["x", "y"]),
        (["header", "ENTRY", "seq"], "", ["b", "d"]),
        (["Id", "seq", "ID"], "", ["a", "b"]),
        (["heavy", "light", "clone"], "?sequence=light", ["row-1", "row-2"]),
        (["heavy", "light", "clone"], "?sequence=light&id=clone", ["x", "y"]),
        (["sequence", "seq", "id"], "?sequence=seq", ["x", "y"]),
        (["a b", "c&d", "e"], "?sequence=c%26d&id=a+b", ["a", "b"]),
    ],
)
def test_columns(tmp_path: Path, columns: list[str], query: str, names: list[str]) -> None:
    cells = {columns[0]: ["a", "b"], columns[1]: ["MKT", "GG"], columns[2]: ["x", "y"]}
    if columns[0] == "Accession":
        cells["Accession"], cells["name"] = cells["name"], cells["Accession"]
    if columns[0] == "header":
        cells = {"header": ["a", "c"], "ENTRY": ["b", "d"], "seq": ["MKT", "GG"]}
    pq.write_table(pa.table(cells), tmp_path / "x.parquet")
    assert contents(source(f"{tmp_path}/x.parquet{query}")) == list(zip(names, ["MKT", "GG"], strict=True))


def test_ids_of_any_type(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [7, 8], "seq": pa.array(["MKT", "GG"], pa.large_string())}), tmp_path / "x.parquet")
    assert contents(source(tmp_path / "x.parquet")) == [("7", "MKT"), ("8", "GG")]
    path = written(tmp_path / "x.jsonl", b'{"id":1,"seq":"MKT"}\n{"id":"b","seq":"GG"}\n')
    assert contents(source(path)) == [("1", "MKT"), ("b", "GG")]


def test_row_numbers_go_on_after_a_stop(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", b"seq\nMKT\nGG\nWW\n")
    assert contents(source(path), SourcePosition(2)) == [("row-4", "WW")]
    assert contents(source(path), SourcePosition(3)) == []


def test_other_columns_of_parquet_are_not_read(tmp_path: Path) -> None:
    columns = {"seq": ["MKT"] * 50, "embedding": [list(range(200))] * 50, "id": [f"p{i}" for i in range(50)]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=10, compression="none")
    content = bytearray((tmp_path / "x.parquet").read_bytes())
    about = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(2).column(1)
    assert about.path_in_schema.startswith("embedding")
    begin = about.dictionary_page_offset or about.data_page_offset
    content[begin : begin + about.total_compressed_size] = bytes(about.total_compressed_size)
    (tmp_path / "x.parquet").write_bytes(content)
    assert contents(source(tmp_path / "x.parquet")) == [(f"p{i}", "MKT") for i in range(50)]
    assert "cannot be read" in error(f"{tmp_path}/x.parquet?id=embedding")


def test_an_empty_file_of_several(tmp_path: Path) -> None:
    for name, rows in (("train-0", []), ("train-1", ["MKT"])):
        pq.write_table(pa.table({"seq": pa.array(rows, pa.string())}), tmp_path / f"{name}.parquet")
    assert contents(source(f"datasets://{tmp_path}")) == [("row-1", "MKT")]


def test_bad_rows_are_refused_one_by_one(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "seq": "MKT"},
        {"id": "b", "seq": None},
        {"id": None, "seq": "GG"},
        {"id": "d", "seq": "G1"},
        {"id": "e"},
        {"id": "f", "seq": "M\u00e9"},
        {"id": "g", "seq": "WW"},
    ]
    path = written(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows)).encode())
    assert [(n, name, reason[:26]) for n, name, reason in refused(source(path))] == [
        (2, "b", "has no sequence; remove th"),
        (3, "", "has no value in the id col"),
        (4, "d", "has '1' at residue 2, whic"),
        (5, "e", "has no sequence; remove th"),
        (6, "f", "has '?' at residue 2, whic"),
    ]
    (block,) = source(path).blocks()
    assert (block.headers.tobytes(), block.lengths.tolist()) == (b"ag", [3, 2])
    short = written(tmp_path / "x.csv", b"id,seq\na,MKT\nb\nc,GG\n")
    assert refused(source(short)) == [(2, "b", "has no sequence; remove the record or fill it")]


def test_a_data_set_in_a_folder(folder: Path) -> None:
    assert contents(source(f"datasets://{folder}")) == EVERYTHING
    assert contents(source(f"datasets://{folder}?split=test")) == EVERYTHING[:1]
    assert contents(source(f"datasets://{folder}?sequence=about&split=test", policy="count"))[0][0] == "P12345"


def test_a_loader_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "x.records", table(".jsonl"))
    assert contents(source(f"datasets://json?data_files={path}")) == EVERYTHING
    path = written(tmp_path / "y.records", b"id;seq\n007;NV\n".replace(b";", b","))
    assert contents(source(f"datasets://csv?data_files={path}")) == [("007", "NV")]


def test_a_csv_in_a_folder_is_read_as_text_too(tmp_path: Path) -> None:
    written(tmp_path / "train.csv", b"id,seq\n007,NV\n")
    assert contents(source(f"datasets://{tmp_path}")) == [("007", "NV")]


def test_stamps(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "x.csv"
    stamps = []
    for content, query in ((b"seq,two\nM,K\n", ""), (b"seq,two\nM,K\n", "?sequence=two"), (b"seq,two\nM,KK\n", "")):
        path.write_bytes(content)
        stamps.append(source(f"{path}{query}").stamp())
        assert stamps[-1] == source(f"{path}{query}").stamp()
    assert stamps[0] != stamps[1] != stamps[2] != stamps[0]
    whole = source(f"datasets://{folder}").stamp()
    assert sum("train-0000" in str(part) for part in whole) == 2
    assert whole == source(f"datasets://{folder}").stamp() != source(f"datasets://{folder}?split=test").stamp()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = source(f"datasets://{copy}").stamp()
    os.utime(copy / "train-00001.parquet", ns=(1, 1))
    assert source(f"datasets://{copy}").stamp() != before
    with pytest.raises(ValueError, match=r"none\.csv: .*data\.sources"):
        source(tmp_path / "none.csv").stamp()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", ["which column is the sequence? 0 of its columns", "it has heavy, light, id", "?sequence=COLUMN"]),
        ("?sequence=Heavy", ["no column 'Heavy'; it has heavy, light, id"]),
        ("?sequence=heavy&id=clone", ["no column 'clone'; it has heavy, light, id"]),
        ("?sequence=id", ["column 'id' holds int in row 1, not text"]),
        ("?seq=heavy", ["'seq=heavy'", "allowed are sequence, id", "x.parquet?sequence=...&id=..."]),
        ("?sequence=heavy&sequence=light", ["each at most once"]),
        ("?sequence=", ["'sequence='"]),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, query: str, words: list[str]) -> None:
    pq.write_table(pa.table({"heavy": ["MKT"], "light": ["GG"], "id": [1]}), tmp_path / "x.parquet")
    message = error(f"{tmp_path}/x.parquet{query}")
    assert [w for w in words if w not in message] == []


def test_two_columns_that_could_be_the_sequence(tmp_path: Path) -> None:
    pq.write_table(pa.table({"Sequence": ["MKT"], "seq": ["GG"]}), tmp_path / "x.parquet")
    assert "2 of its columns bear one of the usual names" in error(tmp_path / "x.parquet")


def test_data_sets_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    assert "no split 'dev'; there is train, test. Name one with" in error(f"datasets://{folder}?split=dev")
    assert "no such configuration; there is default" in error(f"datasets://{folder}?config=full")
    assert f"no such folder {tmp_path}/none" in error(f"datasets://{tmp_path}/none")
    message = error("datasets://someone/proteins?sequence=seq")
    assert "'someone/proteins' is no local folder, and the Hub cannot be reached or HF_HUB_OFFLINE is set" in message
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        source("datasets://someone/proteins").stamp()
    assert "names no data set" in error("datasets://?split=train")
    assert "no such file" in error(tmp_path / "none.parquet")
    assert "no such file" in error(tmp_path / "none.csv")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".json", ".jsonl"])
def test_empty_tables(tmp_path: Path, suffix: str) -> None:
    assert "x" in error(written(tmp_path / f"x{suffix}", b""))
    if suffix in (".csv", ".tsv"):
        assert "no row in it" in error(written(tmp_path / f"x{suffix}", b"seq\n"))
    if suffix == ".parquet":
        pq.write_table(pa.table({"seq": pa.array([], pa.string())}), tmp_path / "x.parquet")
        assert "no row in it" in error(tmp_path / "x.parquet")


@pytest.mark.parametrize("suffix", [".parquet", ".csv.gz", ".json", ".jsonl"])
def test_damaged_tables(tmp_path: Path, suffix: str) -> None:
    content = gzip.compress(table(".csv")) if suffix == ".csv.gz" else table(suffix)
    assert "cannot be read" in error(written(tmp_path / f"x{suffix}", content[: len(content) // 2]))


def test_a_row_with_too_many_cells(tmp_path: Path) -> None:
    assert "Expected 2 fields in line 3, saw 3" in error(written(tmp_path / "x.csv", b"id,seq\na,MKT\nb,GG,W\n"))


def test_bounds_hold_for_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, residues=5)
    path = written(tmp_path / "x.csv", b"id,seq\na,MKTAYI\nb,MKTAY\n")
    (found,) = refused(source(path))
    assert found == (1, "a", "has 6 residues, more than the 5 that a protein may have; remove the record")


@pytest.mark.parametrize("query", ["q=a%20b", "q=a+b&c=%2F~%7e", "x", "x&", "b=1&a=2&b=3", "sig=a%2Bb%3D&z"])
def test_the_query_of_a_server_reaches_it_byte_for_byte(query: str) -> None:
    """Whoever signed it signed its bytes; only our parameters are taken out, wherever they stand."""
    assert split_query(f"https://h/x.csv?{query}") == (f"https://h/x.csv?{query}", {})
    whole = (f"https://h/x.csv?{query}", {"sequence": "a b", "id": "c"})
    assert split_query(f"https://h/x.csv?sequence=a%20b&id=c&{query}") == whole
    assert split_query(f"https://h/x.csv?{query}&sequence=a+b&id=c") == whole
    with serving(Site(b"seq,id\nMKTAYIAKQR,p0\n")) as site:
        source = TableSource(site.url.replace(".fasta", f".csv?{query}&sequence=seq"), ".csv", "refuse")
        assert [len(block.lengths) for block in source.blocks()] == [1]
        assert site.paths == [f"/proteins.csv?{query}"]


def test_parameters_of_the_server_stay_in_the_address() -> None:
    assert split_query("https://h/x.csv?token=a%2Fb&sequence=seq") == (
        "https://h/x.csv?token=a%2Fb",
        {"sequence": "seq"},
    )
    assert split_query("https://h/x.csv") == ("https://h/x.csv", {})
    with pytest.raises(ValueError, match="allowed are sequence, id"):
        split_query("x.csv?token=a")
