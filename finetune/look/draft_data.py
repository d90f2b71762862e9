"""What the proposal would train on: proteins, labels and clusters, opened once before anything is written.

In: a table, settings of `[data]`, inferred tasks. Out: `DraftData`; those that cannot be read are mended or left
out, with the reason. Kept: the token store, which the run uses too.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.settings import IngestSettings
from data.store.build import open_or_build
from data.store.token_store import TokenStore
from finetune.labels.locate import TableRows
from finetune.labels.other_columns import UnusedColumns
from finetune.labels.read import TaskLabels, read_task
from finetune.look.infer_task import InferredTask
from finetune.splits.parts import SplitRecords
from finetune.tables.numbers import MISSING
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table
from finetune.tasks.settings import TaskSettings

_FEW_CONFLICTS = 0.05
"""Share of the labels up to which those of contradicting rows, or of rare classes, are left out."""
_MOST_CONTRADICTING = 0.3
"""The same of rows with different mutations; where more have them, the sequence is that of the wild type."""
_LEAST_OF_A_CLASS = 3
_GAPS, _FEW_GAPPED = {"-", "."}, 0.1
_COUNT, _LEAVE_OUT = {"unknown_letters": "count"}, {"rows_without_protein": "leave_out"}
_MOST_ALONE = 12
"""Tasks that each get a table of their own in the recipe; more of one kind share one."""


@dataclass
class DraftData:
    """Proteins and labels of a proposal."""

    proteins: TableProteins
    tasks: list[TaskLabels]
    inferred: list[InferredTask]
    """One for each of `tasks`."""
    left_out: dict[str, str]
    """Column -> why it cannot be learned."""
    records: SplitRecords
    store: TokenStore
    rows: TableRows
    decimal: str

    def leave_out(self, names: Collection[str]) -> None:
        """Take some tasks out."""
        kept = [number for number, task in enumerate(self.tasks) if task.settings.name not in names]
        self.tasks, self.inferred = [self.tasks[number] for number in kept], [self.inferred[number] for number in kept]

    def of_rows(self, used: NDArray[np.bool_]) -> "DraftData":
        """The same with the labels of some rows alone; (rows,) booleans."""
        rows = replace(self.rows, records=np.where(used, self.rows.records, -1))
        return replace(self, rows=rows, tasks=[read_task(rows, task.settings, self.decimal) for task in self.tasks])

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        """(N,) whether a record has any label."""
        return np.asarray(np.logical_or.reduce([np.diff(task.labels.pointers) > 0 for task in self.tasks]))


def read_proteins(
    table: Table, data: dict[str, Any], reasons: dict[str, str], crop_tokens: int | None = None
) -> TableProteins:
    """The proteins of a table; settings that the table needs are added to `data`.

    Raises:
        ValueError: they cannot be read under any policy.
    """
    data.setdefault("table", [table.name])
    failed: ValueError | None = None
    for policies in ({}, _COUNT, _COUNT | _LEAVE_OUT, _LEAVE_OUT):
        try:
            found = proteins_of(table, _settings(policies | data), crop_tokens).by_content()
        except ValueError as error:
            failed = failed or error
            continue
        signs = sorted({*"".join(found.sequences)} - {*ascii_uppercase})
        if _GAPS & {*signs} or (policies == _LEAVE_OUT and np.mean(found.record_of_row < 0) > _FEW_GAPPED):
            continue  # a gap of an alignment is no residue: few such rows are left out, and many are refused
        data |= {name: value for name, value in policies.items() if signs or name not in _COUNT}
        if signs:
            said = f"some letters are no amino acids, and are read as unknown: {' '.join(signs)}"
            reasons.setdefault("unknown_letters", said)
        if "rows_without_protein" in policies:
            reasons.setdefault("rows_without_protein", "some rows have no sequence, or contradict their wild type")
        return found
    assert failed is not None
    raise failed


def as_settings(values: dict[str, Any], of_several: Collection[str] = ()) -> dict[str, Any]:
    """Values of a recipe as fields of settings hold them: tuples, also of one text where a field is `of_several`."""
    listed = {name: [each] if name in of_several and isinstance(each, str) else each for name, each in values.items()}
    return {name: tuple(each) if isinstance(each, list) else each for name, each in listed.items()}


def _settings(data: dict[str, Any]) -> TableSettings:
    return TableSettings(**as_settings(data, ("sequence", "mutation", "table")))


def open_draft(
    table: Table, proteins: TableProteins, data: dict[str, Any], inferred: Sequence[InferredTask], store_dir: str
) -> DraftData:
    """Read what is proposed, as a run would.

    Raises:
        ValueError: no task can be read.
    """
    settings = _settings(data)
    used = {*settings.sequence, *settings.mutation, settings.protein, settings.id}
    used |= {column for task in inferred for column in task.columns}
    others = UnusedColumns.of(table, used)
    rows = TableRows(table, proteins.record_of_row, proteins.num_records, proteins, others=others)
    tasks: list[TaskLabels] = []
    kept: list[InferredTask] = []
    left_out: dict[str, str] = {}
    for each in _together(inferred):
        try:
            labels, read = _read(rows, each, settings.decimal)
        except ValueError as error:
            left_out |= dict.fromkeys(each.columns, str(error).replace(f"{table.name}: ", ""))
            continue
        rare = {*each.columns} - {*read.columns}
        left_out |= dict.fromkeys(rare, f"fewer than {_LEAST_OF_A_CLASS} labels of one class are too few for a split")
        tasks.append(labels)
        kept.append(read)
    if not tasks:
        name, reason = next(iter(left_out.items()))
        raise ValueError(
            f"{table.name}: has proteins, and needs a column of what was measured of them; column {name!r} cannot be "
            f"learned: {reason}"
        )
    store = open_or_build([proteins], Path(store_dir), settings.unknown_letters, IngestSettings())
    records = SplitRecords(table, proteins.record_of_row, proteins.digests, store)
    return DraftData(proteins, tasks, kept, left_out, records, store, rows, settings.decimal)


def _read(rows: TableRows, task: InferredTask, decimal: str) -> tuple[TaskLabels, InferredTask]:
    """The labels of an inferred task, or of the nearest one that can be read."""
    try:
        return _without_rare(rows, task, decimal)
    except ValueError as error:
        first = error
    for other in _nearest(task, str(first), rows.num_records):
        with suppress(ValueError):
            return _without_rare(rows, other, decimal)
    raise first


def _nearest(task: InferredTask, error: str, num_records: int) -> list[InferredTask]:
    """What may be read in place of a task with an error.

    Sequences whose rows contradict each other are left out; where
    these are many, and labels are zeros and ones, the share of ones is learned.
    """
    found = re.search(r"\((\d+) labels", error)
    torn = int(found[1]) if found else 1
    if "different mutations" in error and torn > _MOST_CONTRADICTING * num_records:
        return []
    if not any(said in error for said in ("different classes", "another above", "different mutations")):
        return []
    of_sequences = task.settings.get("level", "sequence") == "sequence" and "yes or no" not in task.reason
    has_numbers = task.settings["type"] in ("binary", "ordinal") and "classes" not in task.settings
    if torn > _FEW_CONFLICTS * num_records and of_sequences and has_numbers:
        said = "rows of one sequence differ, so that their mean is learned as a number"
        return [replace(task, settings={**task.settings, "type": "regression"}, reason=f"{task.reason}; {said}")]
    one = task.settings.get("level", "sequence")
    said = f"{one} whose rows contradict each other is" if torn == 1 else f"{one}s whose rows contradict are"
    settings = {**task.settings, "replicates": "leave_out"}
    return [replace(task, settings=settings, reason=f"{task.reason}; {torn} {said} left out")]


def _without_rare(rows: TableRows, task: InferredTask, decimal: str) -> tuple[TaskLabels, InferredTask]:
    """The labels of a task; of many classes without those of one or two labels, which no split has in all parts."""
    found = _labels(rows, task, decimal)
    if task.settings["type"] == "multilabel" and len(task.columns) > 1:
        both = 2 * found.labels.outputs + found.labels.values.astype(np.int64)
        counts = np.bincount(both, minlength=2 * len(found.outputs)).reshape(-1, 2).min(axis=1)
        columns = tuple(np.array(task.columns, object)[counts >= _LEAST_OF_A_CLASS].tolist())
        if len(columns) in (0, len(task.columns)):
            return found, task
        said = f"{task.reason}; {len(task.columns) - len(columns)} left out as too rare"
        return _labels(rows, other := replace(task, columns=columns, reason=said), decimal), other
    if task.settings["type"] != "multiclass" or task.settings.get("level", "sequence") != "sequence":
        return found, task
    counts = np.bincount(found.labels.values.astype(np.int64), minlength=len(found.classes))
    rare = [name for name, count in zip(found.classes, counts.tolist(), strict=True) if count < _LEAST_OF_A_CLASS]
    few = counts[counts < _LEAST_OF_A_CLASS].sum() <= _FEW_CONFLICTS * counts.sum()
    if not rare or not few or len(found.classes) - len(rare) < 2:
        return found, task
    settings = {**task.settings, "missing": [*task.settings.get("missing", MISSING), *rare]}
    shown = ", ".join(map(repr, rare[:6])) + (", ..." if len(rare) > 6 else "")
    other = replace(task, settings=settings, reason=f"{task.reason}; left out as too rare: {shown}")
    return _labels(rows, other, decimal), other


def _labels(rows: TableRows, task: InferredTask, decimal: str) -> TaskLabels:
    columns = () if task.columns == (task.name,) else task.columns
    settings = TaskSettings(name=task.name, columns=columns, **as_settings(task.settings))
    found = read_task(rows, settings, decimal)
    if not len(found.labels):
        raise ValueError("no row with a protein has a label")
    if task.settings["type"] == "regression" and not np.ptp(found.labels.values):
        raise ValueError("all labels of rows with a protein are equal")
    if found.classes and len(np.unique(found.labels.values)) < 2:
        raise ValueError(f"all labels of rows with a protein are {found.classes[int(found.labels.values[0])]!r}")
    return found


def _together(tasks: Sequence[InferredTask]) -> list[InferredTask]:
    """Many tasks of one kind as one entry."""
    kinds: dict[str, list[InferredTask]] = {}
    for task in tasks:
        key = repr(sorted((name, value) for name, value in task.settings.items() if name != "missing"))
        single = len(task.columns) == 1 and "classes" not in task.settings and "unit_column" not in task.settings
        kinds.setdefault(key if single else f"{task.name} alone", []).append(task)
    found: list[InferredTask] = []
    for members in kinds.values():
        if len(members) <= _MOST_ALONE or members[0].settings["type"] in ("multiclass", "ordinal"):
            found += members
            continue
        settings = dict(members[0].settings)
        missing = list(dict.fromkeys(text for each in members for text in each.settings.get("missing", ())))
        settings |= {"missing": missing} if missing else {}
        if settings["type"] == "binary":
            settings["type"] = "multilabel"
        columns = tuple(each.columns[0] for each in members)
        name = {"multilabel": "labels", "regression": "numbers"}[settings["type"]]
        found.append(
            InferredTask(columns, settings, name, f"{len(members)} columns of one kind: {members[0].reason}, ...")
        )
    return found
