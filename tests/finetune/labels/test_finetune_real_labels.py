"""Labels of real assays, where a folder beside the project holds them: as many as the files have, and no other."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from finetune.labels.labels import ABOVE, BELOW
from finetune.labels.locate import TableRows
from finetune.labels.objectives import counts_by_part, objectives
from finetune.labels.read import TaskLabels, read_task
from finetune.labels.store import write
from finetune.tables.proteins import proteins_of
from finetune.tables.read import read_table
from finetune.tables.settings import TableSettings
from finetune.tables.table import concatenate_tables
from support.assays.labelled_rows import task
from support.inputs.token_stores import store_of
from support.places import REAL

DATA = REAL.parent
pytestmark = pytest.mark.skipif(
    not (DATA / "ligand").is_dir(), reason="no real assays beside the project (shared/data)"
)


def rows_of_file(path: str) -> TableRows:
    """Each row as a record of its own."""
    table = read_table(str(DATA / path))
    return TableRows(table, np.arange(table.num_rows), table.num_rows)


def together(rows: list[TableRows]) -> TableRows:
    """The rows of several tables as rows of one."""
    total = sum(each.num_records for each in rows)
    column = rows[0].table.columns[0]
    return TableRows(
        concatenate_tables([each.table for each in rows], TableSettings(sequence=(column,))), np.arange(total), total
    )


def part(rows: list[TableRows], number: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.repeat(np.arange(len(rows)) == number, [each.num_records for each in rows])


@pytest.mark.slow
def test_chembl_time_split() -> None:
    rows = [rows_of_file(f"ligand/chembl_5thresh_timesplit_{name}.csv.gz") for name in ("train", "valid", "test")]
    found = read_task(together(rows), task(columns=("CHEMBL*",)))
    assert (found.labels.num_records, len(found.outputs), len(found.labels)) == (23_872, 691, 91_051)
    parts = {name: part(rows, number) for number, name in enumerate(("train", "valid", "test"))}
    counts = counts_by_part(found, parts)
    assert {name: np.count_nonzero(each) for name, each in counts.items()} == {"train": 562, "valid": 503, "test": 564}
    (objective,) = objectives([found], parts["train"])
    assert objective.num_labels is not None
    assert objective.num_labels.tolist() == counts["train"].tolist()
    assert (objective.std > 0).all()


def test_metz_has_as_many_bounds_as_its_file() -> None:
    with gzip.open(DATA / "ligand/metz_interaction.csv.gz", "rt", encoding="utf-8-sig") as file:
        header, *lines = [line.rstrip("\n").split(",") for line in file]
    first = header.index("CDK7")
    cells = [cell.strip() for line in lines for cell in line[first:] if cell.strip()]
    rows = rows_of_file("ligand/metz_interaction.csv.gz")
    found = read_task(rows, task(columns=tuple(rows.table.columns[first:])))
    assert found.labels.censoring is not None
    assert np.count_nonzero(found.labels.censoring == BELOW) == sum(cell.startswith("<") for cell in cells) == 154_175
    assert np.count_nonzero(found.labels.censoring == ABOVE) == 0
    assert len(found.labels) == len(cells) == 258_094


@pytest.mark.slow
def test_unresolved_residues_of_ss3_have_no_label(tmp_path: Path) -> None:
    name = "token/flip_secondary_structure_splits.zip/splits/sequences.fasta?labels=sampled.fasta&mask=mask.fasta"
    table = read_table(str(DATA / name))
    proteins = proteins_of(table, TableSettings(), None)
    rows = TableRows(table, proteins.record_of_row, proteins.num_records, proteins)
    found = read_task(rows, task(columns=("labels",), type="multiclass", level="residue"))
    residues = int(proteins.num_residues.sum())
    assert found.classes == ("C", "E", "H")
    assert proteins.num_records == table.num_rows == 11_156
    assert residues - len(found.labels) == 186_876
    tokens = store_of(tmp_path, zip(proteins.ids, proteins.sequences, strict=True))
    store = write(tokens, {"ss3": found.labels})
    assert sum(path.stat().st_size for path in store.folder.iterdir()) < 6.2 * residues
    labels = store.labels(0)
    assert labels.positions is not None
    assert np.array_equal(labels.positions, found.labels.positions)  # type: ignore[arg-type]
    assert np.array_equal(labels.values, found.labels.values)


def counted(found: TaskLabels) -> list[int]:
    return np.bincount(found.labels.outputs, minlength=len(found.outputs)).tolist()


def test_blat_has_six_assays() -> None:
    rows = rows_of_file("zeroshot/BLAT_ECOLX_Ranganathan2015_labeled.csv.gz")
    found = read_task(rows, task(columns=("0", "39", "156", "625", "2500", "cefotaxime")))
    assert (found.labels.num_records, counted(found)) == (4_996, [4_996] * 5 + [4_977])


def test_membrane_of_deeploc_is_partly_unknown() -> None:
    rows = [rows_of_file(f"assay/deeploc_{name}.fasta.gz") for name in ("test_set", "our_val_set", "setHARD")]
    membrane = read_task(together(rows), task(name="membrane", type="binary", classes=("S", "M")))
    parts = {str(number): part(rows, number) for number in range(3)}
    counts = counts_by_part(membrane, parts)
    assert 1 - counts["0"][0] / 2768 == pytest.approx(0.37, abs=0.005)
    assert counts["2"].tolist() == [0]
    location = read_task(together(rows), task(name="location", type="multiclass"))
    assert len(location.labels) == 2768 + 1678 + 490
    (objective,) = objectives([location], parts["0"])
    untrained = [name for name, count in zip(location.classes, objective.class_counts[0], strict=True) if not count]
    assert untrained == ["Cytoplasm-Nucleus"]
