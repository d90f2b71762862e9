"""Tables that people have: every cell as it was written, what was decided is said, one clear error for the rest."""

import datetime
import gzip
import io
import json
import zipfile
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from finetune.tables.read import read_table, table_parts
from finetune.tables.table import Table

A, B, C = "MKTAYIAKQR", "GGSGGSWWWW", "MKVLAAGIVG"


def written(path: Path, text: str | bytes) -> Table:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(str(path))


def rows(table: Table) -> list[tuple[str | None, ...]]:
    return list(zip(*map(table.column, table.columns), strict=True))


def error(path: Path, text: str | bytes, parameters: str = "") -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r".+") as caught:
        read_table(f"{path}{parameters}")
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(("separator", "word"), [(",", ""), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ""])
def test_separator_is_found_in_the_content(tmp_path: Path, separator: str, word: str, suffix: str) -> None:
    lines = [["id", "sequence", "IC50 (nM)"], ["a", A, "12.5"], ["b", B, ""], ["c", C, "> 100"]]
    table = written(tmp_path / f"x{suffix}", "\n".join(map(separator.join, lines)) + "\n")
    assert table.columns == lines[0]
    assert rows(table) == list(map(tuple, lines[1:]))
    assert table.row(1) == f"{tmp_path}/x{suffix}: row 3"
    assert [word in said for said in table.said] == [True] * bool(word)


def test_decimal_commas_between_semicolons(tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", f"id;seq;a;b\nx;{A};1,5;2,5\ny;{B};0,1;3,5\n")
    assert rows(table) == [("x", A, "1,5", "2,5"), ("y", B, "0,1", "3,5")]
    only_commas = "a;b;c\n" + "1,5;2,5;3,5\n" * 150
    assert written(tmp_path / "y.csv", only_commas).columns == ["a", "b", "c"]
    notes = f"seq|note\n{A}|a, b, c, d, e\n{B}|f, g, h, i, j\n{C}|k\n"
    assert written(tmp_path / "z.csv", notes).columns == ["seq", "note"]


def test_unusual_ways_to_separate(tmp_path: Path) -> None:
    assert rows(written(tmp_path / "a.csv", f"sep=;\r\nid;seq\r\na;{A}\r\n")) == [("a", A)]
    assert read_table(str(tmp_path / "a.csv")).row(0).endswith("row 3")
    spaces = written(tmp_path / "b.txt", f"id  seq   y\na   {A}  1\nb   {B}  2\n")
    assert (spaces.columns, rows(spaces)[1]) == (["id", "seq", "y"], ("b", B, "2"))
    assert rows(written(tmp_path / "c.csv", f"seq\n{A}\n{B}\n")) == [(A,), (B,)]
    assert rows(written(tmp_path / "d.csv", f"id,seq\ra,{A}\rb,{B}\r")) == [("a", A), ("b", B)]
    assert written(tmp_path / "e.csv", 'id,"Kd\n (nM)"\na,1\nb,2\n').columns == ["id", "Kd (nM)"]
    quoted = "".join(f'"{number}\nnote, long",{A},1\n' for number in range(120))
    assert written(tmp_path / "f.csv", f"id,seq,y\n{quoted}").num_rows == 120


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gz", "zst"])
def test_compressed_whatever_its_name(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    assert rows(written(tmp_path / "x.csv.gz", pack(f"seq,y\n{A},1\n".encode()))) == [(A, "1")]
    assert rows(written(tmp_path / "y.csv", pack(f"seq,y\n{A},1\n".encode()))) == [(A, "1")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_of_an_encoding_are_no_part_of_a_name(tmp_path: Path, encoding: str) -> None:
    table = written(tmp_path / "x.csv", f"seq,Kd (µM)\r\n{A},1\r\n".encode(encoding))
    assert table.columns == ["seq", "Kd (µM)"]
    assert table.said == ()


def test_text_that_is_not_utf8_is_read_and_said(tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", f"seq,Kd (µM)\n{A},1\n".encode("latin-1"))
    assert table.columns == ["seq", "Kd (µM)"]
    assert table.said == ("it is not UTF-8 (byte 0xb5 in line 1); it was read as cp1252, where that is 'µ'",)
    assert "UTF-16" in error(tmp_path / "y.csv", f"seq,y\n{A},1\n".encode("utf-16-le"))
    (tmp_path / "z.csv").write_bytes(f"seq,Kd (Ω)\n{A},1\n".encode("iso-8859-7", "replace"))
    assert "encoding=klingon" in error(tmp_path / "z.csv", b"seq,y\nM,1\n", "?encoding=klingon")


def test_quotes_hold_separators_and_line_ends(tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", f'name,seq,y\n"a, b",{A},1\n"two\nlines",{B},2\n"say ""x""",{C},3\n')
    assert [row[0] for row in rows(table)] == ["a, b", "two\nlines", 'say "x"']
    assert [table.number(index) for index in range(3)] == [2, 4, 5]
    assert "quotation mark" in error(tmp_path / "y.csv", f'name,seq,y\n"a,{A},1\nb,{B},2\n')
    tsv = written(tmp_path / "x.tsv", f'name\tseq\n5" prime\t{A}\n"x\t{B}\n')
    assert rows(tsv) == [('5" prime', A), ('"x', B)]
    excel = written(tmp_path / "y.tsv", f'name\tseq\n"a\tb"\t{A}\nx\t{B}\n')
    assert excel.num_rows == 2


def test_comments_titles_and_blank_lines_are_left_out_and_rows_keep_their_numbers(tmp_path: Path) -> None:
    text = f"Table S1. Kinetics\n\n# by hand\nid,seq,y\na,{A},1\n\nb,{B},2\n# a remark\n,,\nc,{C},3\n"
    table = written(tmp_path / "x.csv", text)
    assert rows(table) == [("a", A, "1"), ("b", B, "2"), ("c", C, "3")]
    assert [table.number(index) for index in range(3)] == [5, 7, 10]
    assert table.said == (
        "rows in which every cell is empty are left out: 1",
        "lines above the header are left out: 2",
        "lines that begin with '#' are left out: 1",
    )
    assert written(tmp_path / "y.tsv", f"#id\tseq\na\t{A}\nb\t{B}\n").columns == ["id", "seq"]


def test_a_row_that_does_not_fit_the_header_is_named(tmp_path: Path) -> None:
    assert error(tmp_path / "x.csv", f"id,seq,y\na,{A},1\nb,{B}\nc,{C},3\n") == (
        "FILE: row 3 has 2 fields, and the header 3 ('id', 'seq', 'y'); write the missing ones, empty if need be"
    )
    assert "row 3 has 4 fields" in error(tmp_path / "x.csv", f"id,seq,y\na,{A},1\nb,{B},1,5\nc,{C},3\n")
    assert rows(written(tmp_path / "x.csv", f"id,seq,y\na,{A},1,,\nb,{B},2\n"))[0] == ("a", A, "1")
    assert "only the header 'id', 'seq'" in error(tmp_path / "x.csv", "id,seq\n")
    assert "has no row, nothing" in error(tmp_path / "x.csv", "")


def test_names_are_made_distinct(tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", f",seq,Tm,Tm,,Tm 2\n0,{A},1,2,3,4\n1,{B},1,2,3,4\n")
    assert table.columns == ["column 1", "seq", "Tm", "Tm 3", "column 5", "Tm 2"]
    assert "'column 1', 'Tm 3', 'column 5'" in table.said[0]
    assert written(tmp_path / "y.csv", f"seq,y\n1,{A},5\n2,{B},6\n").columns == ["row name", "seq", "y"]


@pytest.mark.parametrize(
    ("text", "columns", "first_row", "kind"),
    [
        (f"id,seq,IC50,Tm\n,,nM,°C\na,{A},1,50\nb,{B},2,60\n", ["id", "seq", "IC50 (nM)", "Tm (°C)"], 3, "units"),
        (f"id,seq,IC50,Tm\n,,(nM),\na,{A},1,50\nb,{B},2,60\n", ["id", "seq", "IC50 (nM)", "Tm"], 3, "units"),
        (
            f"id,seq,IC50,,Tm,\n,,rep 1,rep 2,rep 1,rep 2\na,{A},1,2,3,4\nb,{B},1,2,3,4\n",
            ["id", "seq", "IC50 rep 1", "IC50 rep 2", "Tm rep 1", "Tm rep 2"],
            3,
            "names",
        ),
        (
            f"Epitope,Epitope,Host,Host\nName,IRI,Name,Sex\n{A},http://a/1,human,\n{B},http://a/2,mouse,f\n",
            ["Epitope Name", "Epitope IRI", "Host Name", "Host Sex"],
            3,
            "names",
        ),
        (f"id,seq,class,class\na,{A},x,y\nb,{B},y,x\nc,{C},x,y\n", ["id", "seq", "class", "class 2"], 2, ""),
        (f"id,seq,IC50\na,{A},inactive\nb,{B},2\nc,{C},3\n", ["id", "seq", "IC50"], 2, ""),
        (f"id,seq,IC50\na,{A},ND\nb,{B},2\nc,{C},3\n", ["id", "seq", "IC50"], 2, ""),
        (f"id,seq,class\na,{A},x\nb,{B},y\nc,{C},x\n", ["id", "seq", "class"], 2, ""),
    ],
)
def test_second_header_line(tmp_path: Path, text: str, columns: list[str], first_row: int, kind: str) -> None:
    table = written(tmp_path / "x.csv", text)
    assert (table.columns, table.first_row) == (columns, first_row)
    assert [f"a second header, of {kind}" in said for said in table.said if "header" in said] == [True] * bool(kind)


def test_three_header_lines(tmp_path: Path) -> None:
    names = ["id", "seq", "IC50 rep 1 (nM)", "IC50 rep 2 (nM)"]
    rows = "".join(f"{letter},{A[at:]},{at},{at}.5\n" for at, letter in enumerate("abcdefghij"))
    text = f"id,seq,IC50,\n,,rep 1,rep 2\n,,nM,nM\n{rows}"
    table = written(tmp_path / "x.csv", text)
    assert (table.columns, table.first_row, table.num_rows) == (names, 4, 10)
    assert ["line 3 is a third header, of units" in said for said in table.said] == [False, True]
    assert read_table(f"{tmp_path / 'x.csv'}?header_lines=3").columns == names
    assert read_table(f"{tmp_path / 'x.csv'}?header_lines=2").num_rows == 11


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["p.[Ala1Pro;Asp2Asn]", "p.Ala1Pro", "p.[Lys3Arg;Ala1Pro;Asp2Asn]"], None),
        (["A1P,D2N", "A1P,D2N", "K3R,D2N"], None),
        (["A1P;D2N", "A1P", "WT"], None),
        (["A1P,1.5", "D2N,2.5"], 2),
    ],
)
def test_a_column_of_mutations_is_not_separated(tmp_path: Path, cells: list[str], expected: int | None) -> None:
    table = written(tmp_path / "x.csv", "\n".join(["hgvs_pro", *cells]) + "\n")
    if expected is None:
        assert (table.columns, table.column("hgvs_pro"), table.said) == (["hgvs_pro"], cells, ())
        (part,) = table_parts(str(tmp_path / "x.csv"), 100)
        assert part.column("hgvs_pro") == cells
    else:
        assert len(table.columns) == expected


def test_the_user_decides_with_parameters(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"id,seq,IC50\na,{A},low\nb,{B},2\n")
    table = read_table(f"{path}?header_lines=2")
    assert table.columns == ["id a", f"seq {A}", "IC50 low"]
    assert read_table(f"{path}?separator=semicolon").columns == ["id,seq,IC50"]
    assert "separator is 'x'; allowed are" in error(path, "a,b\n1,2\n", "?separator=x")
    assert "the parameter 'sheet' means nothing here" in error(path, "a,b\n1,2\n", "?sheet=x")
    assert "its parameters are 'sheeet=x'" in error(path, "a,b\n1,2\n", "?sheeet=x")


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "assays.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"asays\.csv: no such file; .* the nearest is '.*assays\.csv'"):
        read_table(str(tmp_path / "asays.csv"))
    with pytest.raises(ValueError, match="is a folder"):
        read_table(str(tmp_path))


def test_zip_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("splits/a.csv", f"sequence,target\n{A},1\n")
        archive.writestr("splits/.DS_Store", "x")
    table = read_table(f"{tmp_path}/x.zip/splits/a.csv")
    assert rows(table) == rows(read_table(f"{tmp_path}/x.zip")) == [(A, "1")]
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr("splits/b.csv", "")
    with pytest.raises(ValueError, match=r"with 2 tables; name one .* It holds splits/a.csv, splits/b.csv"):
        read_table(f"{tmp_path}/x.zip")
    with pytest.raises(ValueError, match=r"member is 'splits/c\.csv'; the nearest is 'splits/[ab]\.csv'"):
        read_table(f"{tmp_path}/x.zip/splits/c.csv")


def test_parquet_and_json_become_the_text_of_their_values(tmp_path: Path) -> None:
    values = {
        "sequence": [A, None],
        "y": [1.0, float("nan")],
        "n": [3, 4],
        "small": [1e-10, 0.1],
        "ok": [True, False],
        "day": [datetime.date(2026, 1, 2), None],
        "at": [datetime.datetime(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4)],
        "per_residue": [[1.5, None], []],
    }
    pq.write_table(pa.table(values), tmp_path / "x.parquet")
    table = read_table(str(tmp_path / "x.parquet"))
    assert table.columns == list(values)
    assert rows(table) == [
        (A, "1", "3", "1e-10", "true", "2026-01-02", "2026-01-02", "[1.5, null]"),
        (None, None, "4", "0.1", "false", None, "2026-01-02 03:04:00", "[]"),
    ]
    assert table.row(0).endswith("x.parquet: row 1")
    assert all(field.type == pa.string() for field in table.cells.schema)
    assert "cannot be read as Parquet" in error(tmp_path / "y.parquet", b"PAR1 cut short")


def test_jsonl_through_the_reader_of_pretraining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    lines = [{"sequence": A, "y": 1.5}, {"sequence": B, "y": None}]
    table = written(tmp_path / "x.jsonl", "\n".join(map(json.dumps, lines)))
    assert rows(table) == [(A, "1.5"), (B, None)]
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.table({"seq": [A, B], "y": [1, 2]}), folder / "train-00000.parquet")
    pq.write_table(pa.table({"seq": [C], "y": [3]}), folder / "test-00000.parquet")
    assert rows(read_table(f"datasets://{folder}?split=test")) == [(C, "3")]
    with pytest.raises(ValueError, match="no split 'dev'; there is train, test"):
        read_table(f"datasets://{folder}?split=dev")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text(f"seq;y\n{A};007\n{B};1,5\n")
    found = read_table(f"datasets://{tmp_path}/csv")
    assert rows(found) == [(A, "007"), (B, "1,5")]
    assert found.row(0) == f"datasets://{tmp_path}/csv: row 2"


def test_an_error_keeps_what_was_decided_and_cuts_what_stands_as_header(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.title = "Read me"
    book.active.append(["Notes of the authors"])
    book.create_sheet("Data").append(["sequence", "y"])
    packed = io.BytesIO()
    book.save(packed)
    said = error(tmp_path / "x.xlsx", packed.getvalue())
    assert "has no row, only the header 'Notes of the authors'" in said
    assert said.endswith("(read so: the sheet 'Read me' is read; there are also 'Data' ('?sheet=NAME'))")
    said = error(tmp_path / "y.csv", f"# a comment\n{A * 50};y\n{B};1\n{C};2;3\n")
    assert said.endswith("(read so: its fields are separated by semicolons; lines above the header are left out: 1)")
    assert A * 5 not in said
    assert f"'{(A * 50)[:40]}', 'y'" in said
    table = written(tmp_path / "z.csv", f"{A * 50},1\n{B},2\n")
    with pytest.raises(ValueError, match=r"column is 'tm'; allowed are ") as caught:
        table.column("tm")
    assert len(str(caught.value)) < len(str(tmp_path)) + 120


def test_excel_sheets_have_dates_as_text(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    first = book.active
    first.title = "Notes"
    sheet = book.create_sheet("Kinetics")
    for row in (
        ["Measured in May", None, None, None, None],
        ["id", "sequence", "date", "kcat", "ok"],
        [None, None, None, "1/s", None],
        ["a", A, datetime.datetime(2026, 5, 3), 5.0, True],
        [None] * 5,
        ["b", B, datetime.date(2026, 5, 4), 2.25, False],
        ["c", C, None, "#N/A", None],
    ):
        sheet.append(row)
    packed = io.BytesIO()
    book.save(packed)
    table = written(tmp_path / "x.xlsx", packed.getvalue())
    assert table.columns == ["id", "sequence", "date", "kcat (1/s)", "ok"]
    assert rows(table) == [
        ("a", A, "2026-05-03", "5", "true"),
        ("b", B, "2026-05-04", "2.25", "false"),
        ("c", C, "", "", ""),
    ]
    assert [table.number(index) for index in range(3)] == [4, 6, 7]
    assert "the sheet 'Kinetics' is read; there are also 'Notes'" in table.said[0]
    assert "such as #N/A, are taken for empty: 1" in table.said[1]
    assert table.said[2] == "rows above the header are left out: 1"
    with pytest.raises(ValueError, match="sheet is 'Kinetic'; the nearest is 'Kinetics'"):
        read_table(f"{tmp_path}/x.xlsx?sheet=Kinetic")
    assert "is a zip file" in error(tmp_path / "x.csv", packed.getvalue())
