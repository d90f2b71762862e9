"""Predictions of the rows of a table: columns in the user's unit, row by row.

In: the models of a bundle or of a run, rows. Out: names of columns, their values, and what a user should know of them.
Kept: nothing; memory holds one part of the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS, REFUSED, UNK
from finetune.bundle.columns import TaskColumns, task_columns
from finetune.bundle.folder import Bundle, open_folder
from finetune.bundle.locate import bundles_at
from finetune.bundle.manifest import WILD_TYPES, ReadingSettings
from finetune.metrics.weighted import Floats
from finetune.predict.checked_rows import CheckedRows
from finetune.predict.predictor import Predictor, open_predictor
from finetune.predict.relatives import TrainingProteins
from finetune.results.calibration import TOO_SHORT
from finetune.results.results import Ensemble, Results
from finetune.score.write_table import free_name
from finetune.tables.proteins import TableProteins
from finetune.tables.settings import TooLong
from finetune.tables.table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

ROWS = 4096
"""Rows that are read, predicted and written together; no others are in memory."""
IDENTITY = "nearest_train_identity"
_NOTE = "note"
_UNUSUAL = frozenset("XBZUO")

Value = float | str | list[float | str | None] | None
"""A number, the name of a class, a list with an entry for each residue of the row's protein; None without a value."""
Predict = Callable[[TableProteins], Sequence[dict[int, tuple[Floats, ...]]]]
"""Gives for each model the predictions of all records."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Where a user says that the proteins of a table are; what is not given is as in training."""

    sequence: Sequence[str] | None = None
    mutation: Sequence[str] | None = None
    wild_type: str | None = None
    too_long: TooLong | None = None
    skip_invalid: bool = False

    def settings(self, reading: ReadingSettings, folder: Path, columns: Sequence[str]) -> ReadingSettings:
        """How a table with these columns is read, by the model of the bundle in `folder`, which has `reading`."""
        wild_types = folder / WILD_TYPES
        of_mutations = (f for f in fields(reading) if "mutation" in (f.name, *(f.metadata.get("only") or ())))
        plain: dict[str, Any] = {f.name: f.default for f in of_mutations}
        if reading.too_long == "window":  # whole sequences do not say which of their residues are mutated
            plain["too_long"] = "refuse"
        changed: dict[str, Any] = {"id": None}
        mutation = tuple(self.mutation or ()) or (reading.mutation if {*reading.mutation} <= {*columns} else ())
        own = tuple(self.sequence or ()) or (reading.sequence if reading.mutation else ())
        if mutation and (self.mutation or not self.sequence) and not self.wild_type and {*own} & {*columns}:
            changed |= {"mutation": mutation, "sequence": own, "wild_type": None, "protein": None}
        elif self.sequence:
            changed |= plain | {"sequence": tuple(self.sequence)}
        elif mutation:
            changed |= {"sequence": (), "mutation": mutation}
            changed["wild_type"] = self.wild_type or (str(wild_types) if wild_types.is_file() else None)
        elif reading.mutation:
            changed |= plain
        elif len(reading.sequence) == 1 and reading.sequence[0] not in columns:
            changed["sequence"] = ()
        if self.too_long:
            changed["too_long"] = self.too_long
        if self.skip_invalid:
            changed["rows_without_protein"] = "leave_out"
        return replace(reading, **changed)


def table_in_memory(rows: "Sequence[str] | Mapping[str, Sequence[object]] | DataFrame", usual: Sequence[str]) -> Table:
    """Rows as a table of text.

    Raises:
        ValueError: they are one string, or there are none.
    """
    import pyarrow

    if isinstance(rows, str):
        raise ValueError("rows is one string; give a list of sequences, or a table")
    if isinstance(rows, Mapping) or hasattr(rows, "columns"):
        columns = {str(name): list(rows[name]) for name in rows}  # type: ignore[index]
    else:
        columns = {usual[0] if usual else "sequence": list(rows)}
    if not columns or not next(iter(columns.values())):
        raise ValueError("rows: there is none; give at least one sequence")
    cells = {
        name: pyarrow.array([None if each is None or each != each else str(each) for each in values], pyarrow.string())
        for name, values in columns.items()
    }
    return Table("rows", pyarrow.table(cells), 0)


def column_of(values: Sequence[object]) -> NDArray[Any]:
    """(n,) numbers, NaN where there is none; or objects, such as names of classes and lists."""
    if all(value is None or isinstance(value, float) for value in values):
        return np.array(values, np.float64)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def open_predictors(place: Path, base: str | None, device: torch.device | str) -> list[Predictor]:
    """The models of a bundle or of a run.

    Raises:
        ValueError: there is none, one cannot be read, or they predict other tasks.
    """
    bundles = [open_folder(folder) for folder in bundles_at(place)]
    for one in bundles[1:]:
        if _meaning(one) != _meaning(bundles[0]):
            raise ValueError(f"{one.folder} predicts other tasks, or reads tables otherwise, than {bundles[0].folder}")
    return [open_predictor(bundle, base, device) for bundle in bundles]


def _meaning(bundle: Bundle) -> tuple[Any, ...]:
    """What a bundle reads and predicts."""
    tasks = bundle.manifest.tasks
    meanings = [(task.settings.name, task.settings.type, task.outputs, task.classes, task.unit) for task in tasks]
    return bundle.manifest.reading, meanings


class RowPredictions:
    """The predictions of a table's rows.

    Args:
        predictors: of the models, whose mean is predicted.
        rows: of the table.
        trained: the proteins that trained, to which rows are compared; None for no comparison.

    Attributes:
        names: of the columns, none of which the table has.
        messages: sentences for the user.
        num_tasks: how many tasks have columns.
    """

    def __init__(
        self, predictors: Sequence[Predictor], rows: CheckedRows, trained: TrainingProteins | None = None
    ) -> None:
        self._predictors, self._rows, self._trained = predictors, rows, trained
        objectives, members = predictors[0].model.objectives, len(predictors)
        self.messages = [*rows.said, *(trained.said if trained else ())]
        manifests = [predictor.bundle.manifest for predictor in predictors]
        # A calibration is of one model alone, or of the mean of all models of a run.
        results: Results | Ensemble | None = manifests[0].evaluation
        if members > 1:
            results = manifests[0].ensemble
            is_whole = results is not None and len(results.members) == members
            results = results if is_whole and all(each.ensemble == results for each in manifests) else None
        known = results.calibrations if results else ()
        calibrated = {(each.objective, each.task): each.calibration for each in known}
        if not calibrated:
            self.messages.append(
                "there is no calibration of this model or of these models together: no intervals are written"
            )
        reasons = [each.calibration.why_not for each in known if each.calibration.why_not]
        self.messages += [
            f"no intervals or calibration of {reasons.count(each)} tasks: {each}" for each in dict.fromkeys(reasons)
        ]
        if chose := [each.task for each in known if each.calibration.chose and each.calibration.half_width is not None]:
            self.messages.append(f"intervals of {len(chose)} tasks, the first {chose[0]!r}: {TOO_SHORT}")
        pairs = [objective.settings.name for objective in objectives if objective.settings.level == "pair"]
        if pairs:
            self.messages.append(f"tasks about pairs of residues are not written: {', '.join(pairs)}")
        self._tasks: list[tuple[int, TaskColumns]] = task_columns(objectives, calibrated, members, rows.columns)
        self.num_tasks = len(self._tasks)
        if not self._tasks:
            why = (
                f"pairs of residues have no cells in a table ({', '.join(pairs)})"
                if pairs
                else "none had a training label"
            )
            raise ValueError(f"{predictors[0].bundle.folder} has no task that is predicted row by row: {why}")
        identity = [] if trained is None else [free_name(IDENTITY, rows.columns, "_predicted")]
        of_tasks = (name for _, task in self._tasks for name in task.names)
        self.names = [*of_tasks, *identity, free_name(_NOTE, rows.columns, "_predicted")]

    def parts(self, predict: Predict) -> Iterator[tuple[Table, Iterator[list[Value]]]]:
        """The parts of the table, each with the values of its rows.

        Raises:
            ValueError: a prediction is not a number.
        """
        for table, proteins in self._rows.parts:
            yield table, self._values(table, proteins, predict(proteins))

    def _values(
        self, table: Table, proteins: TableProteins, found: Sequence[dict[int, tuple[Floats, ...]]]
    ) -> Iterator[list[Value]]:
        identities = None if self._trained is None else self._trained.identities(proteins)
        reach = self._predictors[0].bundle.manifest.training_residues
        for row in range(table.num_rows):
            record = int(proteins.record_of_row[row])
            values: list[Value] = []
            for number, task in self._tasks:
                if record < 0:
                    values += [None] * len(task.names)
                else:
                    arrays = [member[record][number] for member in found]
                    values += self._of_task(task, arrays, table, proteins, row)
            if identities is not None:
                is_known = record >= 0 and identities[record] == identities[record]
                values.append(float(identities[record]) if is_known else None)
            yield [*values, "; ".join(_notes(proteins, row, record, reach))]

    def _of_task(
        self, task: TaskColumns, arrays: Sequence[Floats], table: Table, proteins: TableProteins, row: int
    ) -> list[Value]:
        is_residue = task.objective.settings.level == "residue"
        try:
            values = task.values(arrays if is_residue else [each[None] for each in arrays])
        except FloatingPointError:
            folder = self._predictors[0].bundle.folder
            raise ValueError(
                f"{table.row(row)}: {folder} predicts something that is not a number for {task.name!r}; its "
                "weights are damaged, or training diverged: look at its validation"
            ) from None
        if not is_residue:
            return [each[0] for each in values]
        places = proteins.places(row, np.arange(proteins.whole_residues[row]))
        begin, end = proteins.linkers[int(proteins.record_of_row[row])]
        places[(begin <= places) & (places < end)] = -1
        return [[None if at < 0 else each[at] for at in places.tolist()] for each in values]


def _notes(proteins: TableProteins, row: int, record: int, reach: tuple[int, int]) -> Iterator[str]:
    """What a reader of the row's predictions should know."""
    if record < 0:
        yield "no protein"
        return
    letters, whole = proteins.sequences[record], int(proteins.whole_residues[row])
    if whole > len(letters):
        yield f"cut from {whole} to {len(letters)} residues ({proteins.too_long})"
    unknown = [letter for letter in letters if LETTER_IDS[ord(letter)] in (REFUSED, UNK)]
    if unknown:
        yield f"{len(unknown)} unknown letters are read as <unk>: {' '.join(sorted({*unknown}))}"
    if unusual := sorted(_UNUSUAL.intersection(letters)):
        yield f"unusual letters: {' '.join(unusual)}"
    if not reach[0] <= len(letters) <= reach[1]:
        yield f"{len(letters)} residues, outside the {reach[0]} to {reach[1]} of training"
