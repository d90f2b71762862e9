"""Real assay tables, where a folder beside the project holds them: the counts that their authors state."""

from collections import Counter
from pathlib import Path

import pytest

from finetune.tables.numbers import ParsedNumbers, parse
from finetune.tables.proteins import proteins_of
from finetune.tables.read import read_table
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table
from support.places import REAL

DATA = REAL.parent
SS3 = "token/flip_secondary_structure_splits.zip/splits/sequences.fasta?labels=sampled.fasta&mask=mask.fasta"
pytestmark = pytest.mark.skipif(
    not (DATA / "assay").is_dir(), reason="no real assays beside the project (shared/data/assay)"
)


def numbers(table: Table, column: str) -> ParsedNumbers:
    """The numbers of all cells in which something was measured."""
    return parse([cell for cell in table.column(column) if cell and cell.lower() not in ("na", "nan", "-")])


def test_secondary_structure_has_no_labels_where_it_is_unresolved() -> None:
    table = read_table(f"{DATA}/{SS3}")
    parts = Counter(zip(table.column("SET"), table.column("VALIDATION"), strict=True))
    assert parts == {("train", "False"): 9712, ("train", "True"): 1080, ("test", "False"): 364}
    labels = Counter("".join(map(str, table.column("labels"))))
    assert labels["-"] == 186_876
    assert set(labels) == set("CHE-")


def test_beta_lactamase_from_its_mutations_is_beta_lactamase_from_its_sequences(tmp_path: Path) -> None:
    variants = read_table(f"{DATA}/zeroshot/P62593_BLAT_variants.fasta.gz")
    assert variants.num_rows == 5397
    by_name = dict(zip(variants.column("header 2"), variants.column("sequence"), strict=True))
    whole = str(by_name["beta-lactamase_P20P"])
    location = f"{DATA}/zeroshot/BLAT_ECOLX_Ranganathan2015_labeled.csv.gz"
    table = read_table(location)
    assert (table.num_rows, len(table.columns)) == (4996, 35)
    found = {}
    for name, letters in (("precursor", whole), ("mature", whole[23:])):
        (tmp_path / f"{name}.fasta").write_text(f">BLAT\n{letters}\n")
        settings = TableSettings(mutation=("mutant",), wild_type=str(tmp_path / f"{name}.fasta"))
        found[name] = proteins_of(table, settings, 300)
    assert found["precursor"].said == ()
    assert "residue 1 of the wild type is number 24" in found["mature"].said[0]
    assert [letters[23:] for letters in found["precursor"].sequences] == list(found["mature"].sequences)
    assert found["precursor"].num_records == 4996
    compared = 0
    for mutant, record in zip(table.column("mutant"), found["precursor"].record_of_row, strict=True):
        if (letters := by_name.get(f"beta-lactamase_{mutant}")) is not None:
            assert letters == found["precursor"].sequences[record]
            compared += 1
    assert compared > 4000
    assert table.num_rows - len(numbers(table, "cefotaxime").values) == 19
