"""FASTA with labels in headers as a table: FLIP's and DeepLoc's headers, files of labels and masks beside it."""

from pathlib import Path

import pytest

from finetune.tables.read import read_table, table_parts
from finetune.tables.wild_types import read_wild_types


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.fasta").write_text(text)


def cells(location: object) -> dict[str, list[str | None]]:
    table = read_table(str(location))
    return {column: table.column(column) for column in table.columns}


def test_attributes_are_columns_and_values_may_hold_spaces(tmp_path: Path) -> None:
    write(tmp_path, x=">a TARGET=1.2 SET=train VALIDATION=True\nMK\nTA*\n>b OS=Homo sapiens SET=test\nmk t\n")
    assert cells(tmp_path / "x.fasta") == {
        "id": ["a", "b"],
        "sequence": ["MKTA*", "mkt"],
        "TARGET": ["1.2", None],
        "SET": ["train", "test"],
        "VALIDATION": ["True", None],
        "OS": [None, "Homo sapiens"],
    }
    assert read_table(str(tmp_path / "x.fasta")).row(1) == f"{tmp_path}/x.fasta: record 2"


def test_attributes_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(">p1 ogt=37;topt=37.5\nMKT\n>p2 ogt=40; topt=nan;\nMKA\n>p3 place=nucleus;membrane ogt=1\nMKS\n")
    table = read_table(str(path))
    assert table.column("ogt") == ["37", "40", "1"]
    assert table.column("topt") == ["37.5", "nan", None]
    assert table.column("place") == [None, None, "nucleus;membrane"]


def test_deeploc_headers_have_hyphens_in_their_classes(tmp_path: Path) -> None:
    write(tmp_path, x=">P1 Cytoplasm-Nucleus-U new\nMK\n>P2 Cell.membrane-M test\nMK\n>P3 Lysosome/Vacuole-S \nMK\n")
    found = cells(tmp_path / "x.fasta")
    assert found["location"] == ["Cytoplasm-Nucleus", "Cell.membrane", "Lysosome/Vacuole"]
    assert found["membrane"] == [None, "M", "S"]
    assert found["description"] == ["new", "test", None]
    write(tmp_path, y=">P1 Cytoplasm-U\nMK\n>P2 a plain description\nMK\n")
    assert list(cells(tmp_path / "y.fasta")) == ["id", "sequence", "description"]


def test_fields_between_bars(tmp_path: Path) -> None:
    write(tmp_path, x=">0|TEM_P20P|1.58\nMK\n>1|TEM_D7E|0.2\nMR\n", y=">sp|P1|A_B\nMK\n>sp|P2|C_D\nMR\n")
    found = cells(tmp_path / "x.fasta")
    assert (found["id"], found["header 3"]) == (["0|TEM_P20P|1.58", "1|TEM_D7E|0.2"], ["1.58", "0.2"])
    assert list(cells(tmp_path / "y.fasta")) == ["id", "sequence"]


def test_labels_and_masks_are_joined_by_id_in_any_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        s=">a\nMKT\n>b\nGG\n",
        l=">b SET=test\nHE\n>a SET=train\nCCH\n",
        m=">a\n011\n>b\n10\n",
    )
    found = cells(f"{tmp_path}/s.fasta?labels=l.fasta&mask=m.fasta")
    assert found["labels"] == ["-CH", "H-"]
    assert found["SET"] == ["train", "test"]
    assert read_table(f"{tmp_path}/s.fasta?labels=l.fasta&mask=m.fasta").said[-1] == (
        f"residues without a label, by the mask {tmp_path}/m.fasta, are written as '-': 2"
    )
    (tmp_path / "l.csv").write_text("id,Tm\nb,50\na,60\n")
    assert cells(f"{tmp_path}/s.fasta?labels=l.csv")["Tm"] == ["60", "50"]


@pytest.mark.parametrize(
    ("labels", "mask", "said"),
    [
        (">a\nCC\n>b\nHH\n", "", "l.fasta: 'a' has 2 labels and 3 residues"),
        (">a\nCCC\n", "", "labels=l.fasta: record 2: 'b' has no labels in"),
        (">a\nCCC\n>b\nHH\n>c\nHH\n", "", "l.fasta: record 3: 'c' is not in"),
        (">a\nCCC\n>b\nHH\n", ">a\n01\n>b\n11\n", "m.fasta: 'a' has a mask of 2 and 3 labels"),
        (">a\nCCC\n>b\nHH\n", ">a\n012\n>b\n11\n", "m.fasta: 'a' has other letters than 0 (no label) and 1"),
        (">a\nCCC\n>a\nHH\n", "", "l.fasta: record 2: the id 'a' stands twice; files are joined by distinct ids"),
        ("a\nCCC\n", "", "l.fasta: not FASTA: the first line is 'a'"),
        ("", "", "l.fasta: not FASTA: the first line is nothing: it is empty"),
    ],
)
def test_files_that_do_not_fit_together(tmp_path: Path, labels: str, mask: str, said: str) -> None:
    write(tmp_path, s=">a\nMKT\n>b\nGG\n", l=labels, m=mask)
    with pytest.raises(ValueError, match=r".+") as caught:
        read_table(f"{tmp_path}/s.fasta?labels=l.fasta" + ("&mask=m.fasta" if mask else ""))
    assert said in str(caught.value)


FIRST, SECOND = "MKTAYIAKQRQISFVKSHFSRQ", "GDLVQHNWEKCPIRTYMSFA"
LABELLED = f">t1|SP\n{FIRST}\n{'S' * 10}{'O' * 12}\n\n>t2|TM\n{SECOND.lower()}\n{'I' * 5}{'M' * 15}\n"


def test_labels_below_the_sequence_are_labels_of_residues(tmp_path: Path) -> None:
    write(tmp_path, x=LABELLED + f">t3|SP\n{FIRST}\n")
    expected = {
        "id": ["t1|SP", "t2|TM", "t3|SP"],
        "sequence": [FIRST, SECOND.lower(), FIRST],
        "header 1": ["t1", "t2", "t3"],
        "header 2": ["SP", "TM", "SP"],
        "labels": ["S" * 10 + "O" * 12, "I" * 5 + "M" * 15, None],
    }
    write(tmp_path, x=LABELLED)
    assert cells(tmp_path / "x.fasta") == {name: texts[:2] for name, texts in expected.items()}
    assert read_table(str(tmp_path / "x.fasta")).said == (
        "labels stand below the sequences; they are the column 'labels'",
    )
    many = "".join(LABELLED.replace("t1", f"a{n}").replace("t2", f"b{n}") for n in range(5))
    write(tmp_path, many=f"{many}>t3|SP\n{FIRST}\n")
    assert cells(tmp_path / "many.fasta")["labels"][-2:] == ["I" * 5 + "M" * 15, None]
    parts = table_parts(str(tmp_path / "many.fasta"), 4)
    assert [part.column("labels") for part in parts] == [
        cells(tmp_path / "many.fasta")["labels"][at : at + 4] for at in (0, 4, 8)
    ]
    assert parts.said == ("labels stand below the sequences; they are the column 'labels'",)
    assert read_wild_types(str(tmp_path / "x.fasta")) == {"t1|SP": FIRST, "t2|TM": SECOND}
    write(tmp_path, many=f"{many}>t3|SP\n{FIRST}\nSSS\n")
    with pytest.raises(
        ValueError, match=r"record 11, 't3\|SP', has lines of 22, 3 letters, where others have a sequence"
    ):
        cells(tmp_path / "many.fasta")


@pytest.mark.parametrize(
    "text",
    [
        f">a\n{FIRST}{FIRST}\n{SECOND}{SECOND}MKTA\n>b\n{FIRST}\n{FIRST[::-1]}\n",  # wrapped proteins of equal lines
        f">a\n{FIRST[:11]}\n{'S' * 11}\n",  # too few letters to be sure
        f">a\n{FIRST}\n{'S' * 22}\n>b\n{FIRST}\n{FIRST[:11]}\n",  # half of the records alone
    ],
)
def test_lines_that_are_no_labels_are_residues(tmp_path: Path, text: str) -> None:
    write(tmp_path, x=text)
    found = cells(tmp_path / "x.fasta")
    assert list(found) == ["id", "sequence"]
    assert "".join(filter(None, found["sequence"])) == "".join(
        line for line in text.splitlines() if not line.startswith(">")
    )


def test_ids_that_begin_as_those_of_uniprot_have_fields(tmp_path: Path) -> None:
    write(tmp_path, x=">sp1|SP\nMKT\n>sp2|TM\nMKA\n")
    assert cells(tmp_path / "x.fasta")["header 2"] == ["SP", "TM"]
