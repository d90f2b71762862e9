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


@pytest.mark.parametrize(
    ("text", "columns", "expected", "numbers"),
    [
        # Separators: the header shows which comma is a decimal sign.
        (f"id;seq;a;b\nx;{A};1,5;2,5\n", "id seq a b", [("x", A, "1,5", "2,5")], [2]),
        ("a;b;c\n" + "1,5;2,5;3,5\n" * 150, "a b c", [("1,5", "2,5", "3,5")] * 150, None),
        (f"seq|note\n{A}|a, b, c, d, e\n{B}|f, g, h, i, j\n{C}|k\n", "seq note", None, None),
        (f"sep=;\r\nid;seq\r\na;{A}\r\n", "id seq", [("a", A)], [3]),
        (f"id  seq   y\na   {A}  1\nb   {B}  2\n", "id seq y", [("a", A, "1"), ("b", B, "2")], None),
        (f"seq\n{A}\n{B}\n", "seq", [(A,), (B,)], None),
        (f"id,seq\ra,{A}\rb,{B}\r", "id seq", [("a", A), ("b", B)], None),
        ("id,seq,y\n" + "".join(f'"{n}\nnote, long",{A},1\n' for n in range(120)), "id seq y", None, None),
        # Quotes hold separators and line ends; in text of tabs they may be letters.
        (
            f'name,seq\n"a, b",{A}\n"two\nlines",{B}\n"say ""x""",{C}\n',
            "name seq",
            [("a, b", A), ("two\nlines", B), ('say "x"', C)],
            [2, 4, 5],
        ),
        (f'name\tseq\n5" prime\t{A}\n"x\t{B}\n', "name seq", [('5" prime', A), ('"x', B)], None),
        (f'name\tseq\n"a\tb"\t{A}\nx\t{B}\n', "name seq", [("a\tb", A), ("x", B)], None),
        # Titles, comments and blank lines are left out, and rows keep their numbers.
        (
            f"Table S1. Kinetics\n\n# by hand\nid,seq,y\na,{A},1\n\nb,{B},2\n# a remark\n,,\nc,{C},3\n",
            "id seq y",
            [("a", A, "1"), ("b", B, "2"), ("c", C, "3")],
            [5, 7, 10],
        ),
        (f"#id\tseq\na\t{A}\nb\t{B}\n", "id seq", [("a", A), ("b", B)], None),
        (f"id,seq,y\na,{A},1,,\nb,{B},2\n", "id seq y", [("a", A, "1"), ("b", B, "2")], None),
        # R writes names of rows without a name of their column.
        (f"seq,y\n1,{A},5\n2,{B},6\n", "row_name seq y", [("1", A, "5"), ("2", B, "6")], None),
    ],
)
def test_tables_of_text(
    tmp_path: Path, text: str, columns: str, expected: list[tuple[str, ...]] | None, numbers: list[int] | None
) -> None:
    table = written(tmp_path / "x.csv", text)
    assert [name.replace(" ", "_") for name in table.columns] == columns.split()
    assert expected is None or rows(table) == expected
    assert numbers is None or [table.number(index) for index in range(table.num_rows)] == numbers


@pytest.mark.parametrize(
    ("text", "parameters", "said"),
    [
        (f"id,seq,y\na,{A},1\nb,{B}\n", "", "FILE: row 3 has 2 fields, and the header 3 ('id', 'seq', 'y'); write the"),
        (f"id,seq,y\na,{A},1\nb,{B},1,5\nc,{C},3\n", "", "row 3 has 4 fields"),
        (f'name,seq,y\n"a,{A},1\nb,{B},2\n', "", "is a quotation mark left open"),
        ("id,seq\n", "", "has no row, only the header 'id', 'seq'"),
        ("", "", "has no row, nothing"),
        ("a,b\n1,2\n", "?separator=x", "separator is 'x'; allowed are"),
        ("a,b\n1,2\n", "?sheet=x", "the parameter 'sheet' means nothing here"),
        ("a,b\n1,2\n", "?sheeet=x", "its parameters are 'sheeet=x'"),
        ("seq,y\nM,1\n", "?encoding=klingon", "encoding=klingon"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, parameters: str, said: str) -> None:
    assert said in error(tmp_path / "x.csv", text, parameters)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    text = f"Table S1. Kinetics\n\n# by hand\nid,seq,y\na,{A},1\n\nb,{B},2\n# a remark\n,,\nc,{C},3\n"
    assert written(tmp_path / "x.csv", text).said == (
        "rows in which every cell is empty are left out: 1",
        "lines above the header are left out: 2",
        "lines that begin with '#' are left out: 1",
    )


def test_names_are_made_distinct(tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", f",seq,Tm,Tm,,Tm 2\n0,{A},1,2,3,4\n1,{B},1,2,3,4\n")
    assert table.columns == ["column 1", "seq", "Tm", "Tm 3", "column 5", "Tm 2"]
    assert "'column 1', 'Tm 3', 'column 5'" in table.said[0]


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


THREE = "id,seq,IC50,\n,,rep 1,rep 2\n,,nM,nM\n" + "".join(
    f"{x},{A[at:]},{at},{at}.5\n" for at, x in enumerate("abcdefghij")
)
LOW = f"id,seq,IC50\na,{A},low\nb,{B},2\n"


@pytest.mark.parametrize(
    ("text", "parameters", "columns", "num_rows"),
    [
        (THREE, "", ["id", "seq", "IC50 rep 1 (nM)", "IC50 rep 2 (nM)"], 10),
        (THREE, "?header_lines=3", ["id", "seq", "IC50 rep 1 (nM)", "IC50 rep 2 (nM)"], 10),
        (THREE, "?header_lines=2", ["id", "seq", "IC50 rep 1", "IC50 rep 2"], 11),
        (LOW, "?header_lines=2", ["id a", f"seq {A}", "IC50 low"], 1),
        (LOW, "?separator=semicolon", ["id,seq,IC50"], 2),
    ],
)
def test_three_header_lines_and_what_the_user_decides(
    tmp_path: Path, text: str, parameters: str, columns: list[str], num_rows: int
) -> None:
    (tmp_path / "x.csv").write_text(text)
    table = read_table(f"{tmp_path}/x.csv{parameters}")
    assert (table.columns, table.num_rows) == (columns, num_rows)
    assert ("line 3 is a third header, of " in "; ".join(table.said)) is ("IC50 rep 1 (nM)" in columns)


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
