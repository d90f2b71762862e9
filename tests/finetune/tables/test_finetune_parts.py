"""Tables in parts: what `read_table` gives of the whole file, of every format, whatever the size of a part."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.tables import read
from finetune.tables.read import read_table, table_parts
from support.assays.messy_tables import TABLES


def require_same(location: str, rows: int) -> list[str]:
    """Parts have the columns, cells, places and words of the whole; what is said of them together."""
    whole, found = read_table(location), table_parts(location, rows)
    assert found.columns == whole.columns
    for _ in range(2):  # they can be read again
        at, said = 0, list(found.said)
        for part in found:
            assert part.num_rows == min(rows, whole.num_rows - at)
            assert part.cells.to_pydict() == whole.cells.slice(at, rows).to_pydict()
            assert [part.row(index) for index in range(part.num_rows)] == [
                whole.row(at + index) for index in range(part.num_rows)
            ]
            at += part.num_rows
            said += part.said
        assert at == whole.num_rows
    return said


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in TABLES.items()])
def test_tables_as_people_have_them(tmp_path: Path, make: Callable[[Path], list[str]]) -> None:
    location = make(tmp_path)[0]
    said = require_same(location, 7)
    assert sorted(said) == sorted(read_table(location).said)


def test_what_comes_after_the_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_FIRST_LINES", 250)
    lines = [f'{number},"a, {number}\nb",MKTAYIAK{"ACDE"[number % 4]}' for number in range(400)]
    lines[300:300] = ["# a remark", ",,", ""]
    text = "Table S1\nn,note,sequence\n" + "\n".join(lines) + "\n"
    (tmp_path / "x.csv").write_text(text)
    (tmp_path / "y.csv.gz").write_bytes(gzip.compress(text.encode()))
    for location in map(str, (tmp_path / "x.csv", tmp_path / "y.csv.gz")):
        assert sorted(require_same(location, 64)) == sorted(read_table(location).said)
    (tmp_path / "x.csv").write_text(text + "1,2\n")
    with pytest.raises(ValueError, match=r"row 806 has 2 fields, and the header 3"):
        list(table_parts(str(tmp_path / "x.csv"), 64))
    (tmp_path / "x.csv").write_text(text + '1,2,"M\n')
    with pytest.raises(ValueError, match=r"line 806: unexpected end of data: is a quotation mark left open"):
        list(table_parts(str(tmp_path / "x.csv"), 64))


def test_fasta(tmp_path: Path) -> None:
    texts = {
        "attributes": "\n>a TARGET=1 SET=x\nMK\nTA*\n>b some words\nmk t\n>c OS=Homo sapiens\n\nMKT\n",
        "deeploc": ">P1 Cytoplasm-Nucleus-U\nMK\n>P2 Cell.membrane-M test\nMK\n>P3 Lysosome-S\nMKK\n",
        "bars": ">0|TEM_P20P|1.58\nMK\n>1|TEM_D7E|0.2\nMR\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.fasta").write_text(text)
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.replace("\n", "\r\n").encode()))
        require_same(str(tmp_path / f"{name}.fasta"), 2)
        require_same(str(tmp_path / f"{name}.txt"), 2)
        require_same(str(tmp_path / f"{name}.gz"), 2)
    (tmp_path / "twice.fasta").write_text(">a\nMK\n>a\nMK\n>\nM\n")
    with pytest.raises(ValueError, match="record 3 has no id"):
        table_parts(str(tmp_path / "twice.fasta"), 2)
    (tmp_path / "twice.fasta").write_text(">a\nMK\n>a\nMR\n")  # which only a join by id refuses
    assert [part.column("sequence") for part in table_parts(str(tmp_path / "twice.fasta"), 1)] == [["MK"], ["MR"]]
    (tmp_path / "none.fasta").write_text("MKT\n")
    with pytest.raises(ValueError, match="not FASTA: the first line is 'MKT'"):
        table_parts(str(tmp_path / "none.fasta"), 2)


def test_parquet(tmp_path: Path) -> None:
    location, rows = tmp_path / "x.parquet", list(range(10))
    table = pa.table({"sequence": [f"MK{'A' * n}" for n in rows], "y": [n / 4 for n in rows], "is": [None] * 10})
    pq.write_table(table, location, row_group_size=4)
    require_same(str(location), 3)
    content = bytearray(location.read_bytes())
    content[10:60] = bytes(50)
    location.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        list(table_parts(str(location), 3))
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ValueError, match="give it the suffix"):
        table_parts(str(tmp_path / "x.csv"), 3)
