"""The results of a run: scores of the tested part beside baselines, and all that is needed to judge them.

In: scores, calibrations, the audit. Out: `Results`; scores.json. Kept: that file, in the run directory and the bundle.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from finetune.metrics.scores import TaskScore, TaskScores
from finetune.results.calibration import Calibration
from finetune.splits.audit import SplitAudit
from zymogen.files.durable import replacing_file
from zymogen.settings.json_file import as_json, parse, read

FORMAT = "zymogen.scores/4"
FILE = "scores.json"


@dataclass(frozen=True, slots=True)
class BaselineScores:
    """A baseline on the labels that the model is scored on."""

    name: str
    scores: TaskScores
    """Those of objectives that it could be fitted to."""
    descriptions: Mapping[str, str]
    """Objective -> how it was made."""
    why_not: Mapping[str, str]
    """Objective -> why it is missing there."""
    seconds: float
    """Wall time of all fits and predictions."""


@dataclass(frozen=True, slots=True)
class EnsembleMemberFacts:
    """A model that takes part in the predictions."""

    name: str
    """Its folder in the run directory; empty where there is only one model."""
    seed: int
    fold: int | None
    step: int
    """Step of the checkpoint that predicts."""
    chosen_on: str
    """What chose it: "validation", or "training" where no validation record has a label."""


@dataclass(frozen=True, slots=True)
class SeedScores:
    """The tested part as the models of one seed alone predict it."""

    seed: int
    scores: TaskScores


@dataclass(frozen=True, slots=True)
class ReplicateCeiling:
    """How well the replicates of a task agree on the tested part."""

    objective: str
    task: str
    replicated: int
    """Labels that are made of several measurements."""
    icc: float
    """Intraclass correlation of single measurements."""
    pearson: float
    """The highest Pearson correlation with the labels that predictions of the truth would have."""


@dataclass(frozen=True, slots=True)
class TaskCalibration:
    """The calibration of one task, and what is left of its promise on the tested part."""

    objective: str
    task: str
    calibration: Calibration
    on_part: Mapping[str, float]
    """`coverage` and `width` of intervals, or `calibration_error_before` and `calibration_error_after`."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """All models of a run together, whose mean predicts."""

    members: tuple[EnsembleMemberFacts, ...]
    calibrations: tuple[TaskCalibration, ...]
    """Calibrations of their mean."""


@dataclass(frozen=True, slots=True)
class Results:
    """What a run found, or one of its models alone."""

    part: str
    """What was scored: "test", "all folds", "fold 0" of the model of one, "validation" where no record is tested."""
    scores: TaskScores
    validation: TaskScores | None
    """Those of the part that chose the checkpoint; None with folds, where it is tested by another model."""
    baselines: tuple[BaselineScores, ...]
    members: tuple[EnsembleMemberFacts, ...]
    seeds: tuple[SeedScores, ...]
    """Empty with one seed."""
    ceilings: tuple[ReplicateCeiling, ...]
    """One for each task with replicates."""
    calibrations: tuple[TaskCalibration, ...]
    split: str
    """What kind of split it is, in words that its audit allows."""
    split_fingerprint: str
    audit: SplitAudit | None
    notes: tuple[str, ...] = ()
    """What could not be done, in sentences."""
    caveats: tuple[str, ...] = ()
    """`text.caveats`, made once: the console, the report and the card have the same sentences."""
    said: tuple[str, ...] = ()
    """What the start of the run said of tables, split and model; empty in a bundle, as it names files."""
    inputs: str = ""
    """Hash of everything on which all of this depends; empty in a bundle."""
    format: str = FORMAT

    @property
    def scored(self) -> str:
        """What was scored, in words."""
        return self.part if "fold" in self.part else f"the {self.part} part"

    def of_baselines(self, task: TaskScore) -> dict[str, float]:
        """Name of each baseline that has a value of a task's metric -> that value."""
        return {
            each.name: other.value
            for each in self.baselines
            for other in each.scores.tasks
            if (other.objective, other.task) == (task.objective, task.task) and other.value is not None
        }

    def best_baseline(self, task: TaskScore) -> tuple[str, float] | None:
        """The baseline with the highest value of a task's metric, and that value."""
        return max(self.of_baselines(task).items(), key=lambda each: each[1], default=None)

    def spread(self, task: TaskScore) -> tuple[float, float] | None:
        """Mean and sample standard deviation over seeds of a task's metric; None with one seed or where undefined."""
        values = [
            other.value
            for each in self.seeds
            for other in each.scores.tasks
            if (other.objective, other.task) == (task.objective, task.task) and other.value is not None
        ]
        if len(values) < 2:
            return None
        return statistics.fmean(values), statistics.stdev(values)

    def ceiling(self, task: TaskScore) -> ReplicateCeiling | None:
        """The ceiling of a task, if it has replicates."""
        return next((c for c in self.ceilings if (c.objective, c.task) == (task.objective, task.task)), None)

    def write(self, path: Path) -> None:
        """Write scores.json, which has the mean skill of the tasks besides.

        Raises:
            ValueError: a number that a score must have is not finite; nothing is written.
        """
        text = as_json(self, skill=self.scores.stopping_metric)
        parse(Results, text.encode(), str(path), "file of a run's scores", "report this with the recipe")
        with replacing_file(path, "get the right to write there") as new:
            new.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The results that `write` wrote.

        Raises:
            ValueError: it is not there, or is something else.
        """
        return read(cls, path, "file of a run's scores", "start the run again to write it")
