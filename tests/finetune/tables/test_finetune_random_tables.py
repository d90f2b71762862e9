"""Random tables: every label is what an independent reading of the docs makes of the table, in any order of rows."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.assays import split_and_read
from finetune.labels.read import TaskLabels
from finetune.recipe import AssaySettings, EnsembleRunSettings, Recipe
from finetune.splits.parts import NAMES
from finetune.splits.settings import SplitSettings
from finetune.splits.split import Split
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.table import Table
from finetune.tasks.settings import TaskSettings
from pretrain.model.settings import ModelSettings
from zymogen.trainer.optimizer.settings import ScheduleSettings

READ = 9
"""Residues that a document holds."""
WILD = "MKTAYIAKQRCDEFGHLNPSVW"
PROTEINS = ["MKT", "ACDEFGHIK", "ACDEFGHIKLMN", "ACDEFGHIKWYV", "MNPQRSTVWYAC", "GGSGGS", "WYVTSRQPNMLK", "mkv", "CMKT"]
NUMBERS = ["0", "1.5", "-2", "30", "7", "0.25", "", None, "NA"]
PARTS = ["train", "train", "valid", "test", "unused", "", None]
YEARS = ["2001", "2004", "2008", "2012", "2016", "2020", None]


@dataclass(frozen=True)
class Case:
    """A table, and how it is read."""

    rows: pd.DataFrame
    by: str
    conflict: str
    replicates: str
    conditions: tuple[str, ...]
    is_mutated: bool
    too_long: str


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Tables of 6 to 40 rows with all that makes labels go to the wrong protein."""
    is_mutated = draw(st.booleans())
    mutations = [
        None,
        "WT",
        *(f"{WILD[at]}{at + 1}A" for at in range(len(WILD)) if WILD[at] != "A"),
        *("M1C:K8R", "K2A:W22A"),
    ]
    proteins = st.sampled_from(mutations if is_mutated else [None, *PROTEINS])
    by = draw(st.sampled_from(["column", "time", "random"]))
    cells = {
        "protein": proteins,
        "s": st.sampled_from(YEARS if by == "time" else PARTS),
        "y": st.sampled_from(NUMBERS),
        "pH": st.sampled_from(["7", "7.0", "9", None]),
    }
    size = draw(st.integers(6, 40))
    rows = pd.DataFrame({name: draw(st.lists(each, min_size=size, max_size=size)) for name, each in cells.items()})
    return Case(
        rows.astype(object).where(rows.notna(), None),
        by,
        draw(st.sampled_from(["held_out", "unused"])),
        draw(st.sampled_from(["mean", "median"])),
        draw(st.sampled_from([(), ("pH",)])),
        is_mutated,
        "window" if is_mutated else draw(st.sampled_from(["start", "end"])),
    )


# What the docs say, once more ---------------------------------------------------------------------


def whole(cell: str | None) -> str | None:
    """The protein of a row, before it is cut; None for a row that is left out."""
    if cell is None:
        return None
    if cell == "WT":
        return WILD
    letters, changes = list(WILD), cell.split(":")
    places = [int(change[1:-1]) - 1 for change in changes]
    for place, change in zip(places, changes, strict=True):
        letters[place] = change[-1]
    return "".join(letters) if max(places) - min(places) < READ else None


def expected(case: Case) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """Label of each protein and output, and the part of each protein where the table gives it."""
    rows = case.rows.copy()
    rows["letters"] = rows["protein"].map(whole if case.is_mutated else lambda cell: cell and cell.upper())
    rows = rows[rows["letters"].notna()]
    if not case.is_mutated:  # two proteins of which the same is read are left out
        rows["read"] = rows["letters"].map(lambda each: each[:READ] if case.too_long == "start" else each[-READ:])
        rows = rows[rows.groupby("read")["letters"].transform("nunique") == 1]
    rows["part"] = 0
    if case.by == "column":
        rows["part"] = rows["s"].map({"train": 0, "valid": 1, "test": 2}).fillna(-1)
    elif case.by == "time":
        years = rows["s"].astype(float)
        rows["part"] = np.where(years.isna(), -1, np.where(years >= 2014, 2, np.where(years >= 2007, 1, 0)))
    rows = rows[rows["part"] >= 0]
    highest = rows.groupby("letters")["part"].transform("max")
    if case.by == "column" and case.conflict == "unused":
        rows = rows[rows.groupby("letters")["part"].transform("nunique") == 1]
    else:
        rows = rows[rows["part"] == highest]
    parts = rows.groupby("letters")["part"].first()
    labelled = rows[~rows["y"].isin([None, "", "NA"])].assign(y=lambda each: each["y"].astype(float))
    value = labelled["pH"].map(lambda cell: "not given" if cell is None else f"{float(cell):g}")
    labelled = labelled.assign(output="y, pH " + value if case.conditions else "y")
    found = labelled.groupby(["letters", "output"])["y"].agg(case.replicates)
    return dict(found.items()), {letters: NAMES[int(part)] for letters, part in parts.items()}


# What the program makes of it ---------------------------------------------------------------------


def read(case: Case, folder: Path, order: Any = None) -> tuple[TableProteins, Split, TaskLabels]:
    rows = case.rows if order is None else case.rows.iloc[order]
    cells = {name: pa.array(rows[name].tolist(), pa.string()) for name in rows.columns}
    where: dict[str, Any] = {"sequence": ("protein",)}
    if case.is_mutated:
        (folder / "wt.fasta").write_text(f">P\n{WILD}\n")
        where = {"mutation": ("protein",), "wild_type": str(folder / "wt.fasta")}
    data = AssaySettings(table=("t.csv",), rows_without_protein="leave_out", too_long=case.too_long, **where)  # type: ignore[arg-type]
    split: dict[str, Any] = {"by": case.by, "column": "s"}
    split |= {"conflict": case.conflict} if case.by == "column" else {}
    split |= {"cuts": ("2007", "2014")} if case.by == "time" else {}
    split = {"by": "random", "fractions": (0.5, 0.0, 0.5)} if case.by == "random" else split
    task_: dict[str, Any] = {"replicates": case.replicates, "conditions": case.conditions}
    recipe = Recipe(
        run=EnsembleRunSettings(directory=str(folder)),
        model=ModelSettings(preset="esm2_60k"),
        data=data,
        tasks=(TaskSettings(name="y", type="regression", **task_),),
        split=SplitSettings(**split),
        schedule=ScheduleSettings(passes=1),
    )
    table = Table("t.csv", pa.table(cells), 2)
    proteins = proteins_of(table, data, READ + 2).by_content()
    division, (task,), _ = split_and_read(recipe, table, proteins)
    return proteins, division, task


def by_name(proteins: TableProteins, task: TaskLabels, case: Case) -> dict[tuple[str, str], float]:
    letters: dict[int, str] = {}
    for row, record in enumerate(proteins.record_of_row.tolist()):
        cell = case.rows["protein"][row]
        if record >= 0:
            letters[record] = str(whole(cell) if case.is_mutated else cell.upper())
    of = np.repeat(np.arange(proteins.num_records), np.diff(task.labels.pointers)).tolist()
    outputs = [task.outputs[output] for output in task.labels.outputs.tolist()]
    return {(letters[r], o): v for r, o, v in zip(of, outputs, task.labels.values.tolist(), strict=True)}


def check(case: Case, folder: Path) -> None:
    labels, parts = expected(case)
    named = {*parts.values()}
    if case.by != "random" and not {"train", "test"} <= named:
        with pytest.raises(ValueError, match=r"leaves no record for|no row has a protein|has only proteins"):
            read(case, folder)
        return
    try:
        proteins, division, task = read(case, folder)
    except ValueError as error:
        if case.by == "random" and re.search("leaves no record for|no row has a protein|has only proteins", str(error)):
            return  # too few proteins
        raise
    found = by_name(proteins, task, case)
    assert found.keys() == labels.keys()
    for key, value in labels.items():
        assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-7)
    rows = {record: row for row, record in enumerate(proteins.record_of_row.tolist()) if record >= 0}
    for record, row in rows.items():
        cell = case.rows["protein"][row]
        letters = whole(cell) if case.is_mutated else cell.upper()
        if case.by != "random":
            assert NAMES[division.parts.part[record]] == parts.get(letters, "unused")
        if case.is_mutated and cell != "WT":  # what is mutated is read
            for change in cell.split(":"):
                (place,) = proteins.places(row, np.array([int(change[1:-1]) - 1]))
                assert proteins.sequences[record][place] == change[-1]
    order = np.random.default_rng(len(case.rows)).permutation(len(case.rows))
    other, other_division, other_task = read(case, folder, order)
    assert other_division.parts.fingerprint == division.parts.fingerprint
    assert other.sequences == proteins.sequences
    for name in ("part", "group", "digests"):
        assert getattr(other_division.parts, name).tolist() == getattr(division.parts, name).tolist()
    assert other_task.outputs == task.outputs
    for name in ("pointers", "outputs", "values"):
        assert getattr(other_task.labels, name).tolist() == getattr(task.labels, name).tolist()


FEW = settings(max_examples=60, deadline=None, derandomize=True)
MANY = settings(max_examples=1000, deadline=None)


@FEW
@given(case=cases())
def test_labels_are_those_of_an_independent_reading(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    check(case, tmp_path_factory.getbasetemp())


@pytest.mark.prove
@MANY
@given(case=cases())
def test_labels_of_a_thousand_tables(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    check(case, tmp_path_factory.getbasetemp())
