"""CSV and TSV: no value comes to stand under another column's name, whatever the rows look like."""

import gzip
from pathlib import Path

import pytest
from backports import zstd

from data.sources.block import SourcePosition
from data.sources.tables import TableSource
from support.inputs.protein_files import contents, lower, refused
from support.inputs.protein_files import write as written

HEADER = b"id,sequence,family\n"


def source(path: str, suffix: str = ".csv") -> TableSource:
    return TableSource(path, suffix, "refuse")


def read(tmp_path: Path, text: bytes, suffix: str = ".csv", query: str = "") -> list[tuple[str, str]]:
    return contents(source(written(tmp_path / f"x{suffix}", text) + query, suffix))


def error(tmp_path: Path, text: bytes, suffix: str = ".csv") -> str:
    path = written(tmp_path / f"x{suffix}", text)
    with pytest.raises(ValueError, match=r".+") as caught:
        contents(source(path, suffix))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "text",
    [
        HEADER + b"p1,MKLVAC,KINASE,\np2,GGACDE,LIGASE,\n",
        HEADER + b"p1,MKLVAC,KINASE,,,\np2,GGACDE,LIGASE,,,\n",
        b"id,sequence,family,\np1,MKLVAC,KINASE,\np2,GGACDE,LIGASE,\n",
        b"id,sequence,family,,\np1,MKLVAC,KINASE\np2,GGACDE,LIGASE\n",
        HEADER + b"p1,MKLVAC,KINASE,\np2,GGACDE,LIGASE\n",
        HEADER + b"p1,MKLVAC,KINASE\np2,GGACDE,LIGASE,\n",
        HEADER + b"p1,MKLVAC,KINASE, \np2,GGACDE,LIGASE,,\n",
        HEADER + b'p1,MKLVAC,"A, B\nC, D",\np2,GGACDE,"A ""quoted"" one",\n',
        HEADER + b"\n  \np1,MKLVAC,\n\np2,GGACDE,LIGASE",
        HEADER.replace(b"\n", b"\r\n") + b"p1,MKLVAC,KINASE,\r\np2,GGACDE,LIGASE,\r\n",
        HEADER.replace(b"\n", b"\r") + b"p1,MKLVAC,KINASE,\rp2,GGACDE,LIGASE\r",
        b"sequence,id,\nMKLVAC,p1,note\nGGACDE,p2,\n",  # a column without a name
    ],
)
def test_separators_at_the_end_of_a_row_shift_nothing(tmp_path: Path, text: bytes) -> None:
    wanted = [("p1", "MKLVAC"), ("p2", "GGACDE")]
    assert read(tmp_path, text) == wanted
    if b'"' not in text:
        assert read(tmp_path, text.replace(b",", b"\t"), ".tsv") == wanted
    assert contents(source(f"{tmp_path}/x.csv"), SourcePosition(1)) == wanted[1:]


def test_two_columns_with_separators_at_the_end(tmp_path: Path) -> None:
    assert read(tmp_path, b"id,sequence\np1,MKLV,\np2,GGA,\n") == [("p1", "MKLV"), ("p2", "GGA")]


def test_row_names_as_r_writes_them(tmp_path: Path) -> None:
    text = b'"id","sequence","family"\n"1","p1","MKLVAC","KINASE"\n'
    assert "saw 4: the header, in line 1, has 3" in (said := error(tmp_path, text))
    assert "if there is a column without a name, as R writes names of rows, give it one" in said
    assert read(tmp_path, b'"",' + text) == [("p1", "MKLVAC")]


@pytest.mark.parametrize(
    ("rows", "line", "saw"),
    [
        (b"p1,MKLVACDEFG,Smith, J\np2,GGACDEFGHI,Miller, K\n", 2, 4),  # looks like R's form
        (b"p1,MKLVAC,KINASE\np2,GGACDE,LIGASE,X\n", 3, 4),
        (b"p1,MKLVAC,KINASE,\np2,x,GGACDE,LIGASE\n", 3, 4),  # after a row that ends in a separator
        (b"p1,MKLVAC,KINASE,,X\n", 2, 5),
        (b'p1,MKLVAC,"KIN\nASE"\np2,GGACDE,LIGASE,X\n', 4, 4),
        (b"p1,MKLVAC,KINASE\n" * 150 + b"p2,GGACDE,LIGASE,X\n", 152, 4),
    ],
)
def test_a_field_too_many_is_refused_with_both_counts(tmp_path: Path, rows: bytes, line: int, saw: int) -> None:
    for suffix, text in ((".csv", HEADER + rows), (".tsv", (HEADER + rows).replace(b",", b"\t"))):
        if suffix == ".csv" or b'"' not in text:
            said = error(tmp_path, text, suffix)
            assert f"Expected 3 fields in line {line}, saw {saw}" in said
            assert "has 3 ('id', 'sequence', 'family'). Put quotes around a field" in said


def test_a_row_that_is_too_short_is_no_record(tmp_path: Path) -> None:
    text = HEADER + b"p1,MKLVAC,KINASE\nGGACDE,LIGASE\np3,MKL\np4\np5,MK,\n"
    path = written(tmp_path / "x.csv", text)
    reasons = refused(source(path))
    assert [(number, name) for number, name, _ in reasons] == [(2, "GGACDE"), (3, "p3"), (4, "p4")]
    assert "has 2 fields, in line 3, where 3 are expected by the header" in reasons[0][2]
    assert reasons[2][2] == "has no sequence; remove the record or fill it"
    assert [b.headers.tobytes() for b in source(path).blocks()] == [b"p1p5"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_two_columns_of_one_name(tmp_path: Path, suffix: str) -> None:
    text = b"id,seq,note,seq\np1,MKLV,x,GGA\n".replace(b",", b"," if suffix == ".csv" else b"\t")
    assert "2 of its 4 columns are called 'seq'; give each a name of its own" in error(tmp_path, text, suffix)
    assert read(tmp_path, b"id,seq,,\np1,MKLV,x,y\n") == [("p1", "MKLV")]  # two without a name


def test_what_is_no_table(tmp_path: Path) -> None:
    assert "cannot be read: line 4: unexpected end of data: is a quotation mark left open?" in error(
        tmp_path, HEADER + b'p1,MK,x\np2,MKL,"y\np3,GG,z\n'
    )
    assert "it is not UTF-8" in error(tmp_path, (HEADER + b"p1,MK,x\n").decode().encode("utf-16"))
    assert "NUL bytes in its header" in error(tmp_path, (HEADER + b"p1,MK,x\n").decode().encode("utf-16-le"))
    assert "cannot be read: it is not UTF-8 (byte 0xe9); save it as UTF-8" in error(
        tmp_path, HEADER + b"p1,MK,x\np2,GG,caf\xe9\n"
    )
    for text in (b"", b"\n\n", HEADER):
        assert "no row in it (empty table)" in error(tmp_path, text)
    assert "0 of its columns" in error(tmp_path, HEADER.replace(b",", b";") + b"p1;MK;x\n")
    for packed in (gzip.compress(HEADER + b"p1,MK,x\n" * 99)[:-9], zstd.compress(HEADER + b"p1,MK,x\n" * 99)[:-9]):
        said = error(tmp_path, packed)
        assert "stream ends early" in said
        assert (
            "so that it cannot be read after line 100" if packed[0] == 0x1F else "cannot be read in its header"
        ) in said
        assert "copy or download it again" in said


def test_caps_hold_as_for_fasta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.csv", HEADER + b"p1," + b"M" * 200_000 + b",x\n")
    assert len(contents(source(path))[0][1]) == 200_000  # above the 128 kB of the csv module
    for bound, words in (("line", "has a line of more than 1000 bytes"), ("size", "has more than 1000 bytes")):
        with monkeypatch.context() as patch:
            lower(patch, **{bound: 1000})
            with pytest.raises(ValueError, match=rf"x.csv: {words}, so that it cannot be read in its header: "):
                contents(source(path))


def test_the_size_is_known_and_how_much_was_read(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv.gz", gzip.compress(HEADER + b"p1,MKLV,x\n"))
    found = source(path)
    assert [block.bytes_read for block in found.blocks()] == [found.num_bytes] == [Path(path).stat().st_size]


def test_a_data_set_of_csv_files(tmp_path: Path) -> None:
    for name, rows in (("train-0", b"p1,MKLVAC,KINASE,\n"), ("train-1", b"p2,GGACDE,LIGASE\n"), ("test", b"p3,MK,x\n")):
        written(tmp_path / f"{name}.csv", HEADER + rows)
    place = f"datasets://{tmp_path}"
    assert contents(source(place, "")) == [("p1", "MKLVAC"), ("p2", "GGACDE")]
    assert contents(source(place, ""), SourcePosition(1)) == [("p2", "GGACDE")]
    assert contents(source(f"{place}?split=test", "")) == [("p3", "MK")]
    with pytest.raises(ValueError, match=r"no split 'dev'; there is train, test"):
        contents(source(f"{place}?split=dev", ""))
    written(tmp_path / "train-1.csv", HEADER + b"p2,GGACDE,LIGASE,X\n")
    with pytest.raises(ValueError, match=r"train-1.csv: cannot be read: Expected 3 fields in line 2, saw 4"):
        contents(source(place, ""))
    written(
        tmp_path / "README.md", b"---\nconfigs:\n- config_name: default\n  data_files: test.csv\n  skiprows: 1\n---\n"
    )
    with pytest.raises(ValueError, match=r"to be read with skiprows, as its authors say, which is not done here"):
        contents(source(place, ""))
    said = b"---\nconfigs:\n- config_name: default\n  data_files: test.csv\n  sep: ';'\n---\n"
    written(tmp_path / "README.md", said)
    written(tmp_path / "test.csv", b"id;sequence\np4;MKV;\n")
    assert contents(source(place, "")) == [("p4", "MKV")]
