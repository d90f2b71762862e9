"""What a run directory tells of its run, whatever of it is there.

In: run.json, metrics.jsonl, what is recorded of the starts, predictions.json. Out: a `RunHistory`. Kept:
nothing. Lines that are damaged or half-written are left out, and so are steps that were lost in a restart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.evaluate.scores import HeldOutUnit, Prediction, ProteinPredictions
from pretrain.evaluate.training_curve import TrainingCurve, number, training_curve, without_rolled_back
from pretrain.report.chart import Numbers
from zymogen.settings.json_file import read_bytes
from zymogen.trainer.run.attempts import KILLED, Attempt, AttemptRecords, attempts
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.records import read_metrics, seconds
from zymogen.trainer.run.run_json import RunRecord

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """Scores at one point."""

    step: int
    tokens: int
    time: float
    scores: Mapping[str, Mapping[str, float | None]]
    set: str = ""
    """Hash of the frozen set; empty of a job without one."""
    part: str = "validation"
    """What was scored: "training" where a job has nothing else."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run up to now."""

    root: Path
    described: RunRecord
    columns: Mapping[str, Numbers]
    """By name, (steps,) each: the numbers of the logged steps, NaN where one was not finite or not logged."""
    tokens: int
    """Tokens seen, as far as any line tells, without those of steps that were lost in a restart."""
    course: TrainingCurve
    """The course of its losses, from which the verdict follows."""
    validations: tuple[ValidationPoint, ...]
    starts: tuple[Attempt, ...]
    saves: tuple[float, ...]
    """When each checkpoint was written, those of steps that were lost included."""
    failed_saves: tuple[float, ...]
    """When one could not be written."""
    proteins: tuple[Prediction, ...]

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe of the latest start, every field."""
        return self.described.recipe

    @property
    def is_shared(self) -> bool:
        """Whether others may read its checkpoints, and so what the report shows of the corpus."""
        return bool((self.recipe.get("run") or {}).get("shared"))

    @property
    def held_out(self) -> HeldOutUnit | None:
        """What the scored proteins are; None where run.json does not say it."""
        return HeldOutUnit.of(self.described.corpus)

    def column(self, name: str) -> Numbers:
        """A column, NaN where it was never logged."""
        return self.columns.get(name, np.full(len(self.columns.get("step", ())), np.nan))

    @property
    def is_finished(self) -> bool:
        """Whether the run has trained to its last token."""
        return bool(self.starts) and self.starts[-1].exit == "finished"

    @property
    def has_ended(self) -> bool:
        """Whether the last start has written how it ended; a killed one has not."""
        return bool(self.starts) and self.starts[-1].exit != KILLED


def read_history(root: Path, last_step: float = math.inf) -> RunHistory:
    """Read a run directory, in which a process may be writing, up to a step.

    Raises:
        ValueError: it is no run directory of this program.
    """
    run = RunDirectory(root)
    described, predictions = run.read(), read_bytes(ProteinPredictions, run.predictions)
    lines = read_metrics(run.metrics)
    all_starts = attempts(AttemptRecords.read(run), lines)
    kept = [line for line in without_rolled_back(lines, all_starts) if line["step"] <= last_step]
    return RunHistory(
        root=root,
        described=described,
        columns=_columns([line for line in kept if "loss" in line]),
        tokens=max((line["tokens"] for line in kept), default=0),
        course=training_curve(kept),
        validations=tuple(
            ValidationPoint(line["step"], line["tokens"], seconds(line["time"]), line[part], line.get("set", ""), part)
            for line in kept
            for part in ("validation", "training")
            if part in line
        ),
        starts=tuple(all_starts),
        saves=tuple(seconds(line["time"]) for line in lines if "checkpoint_s" in line),
        failed_saves=tuple(seconds(line["time"]) for line in lines if "save_error" in line),
        proteins=predictions.proteins if predictions else (),
    )


def _columns(lines: list[dict[str, Any]]) -> dict[str, Numbers]:
    names = dict.fromkeys(name for line in lines for name in line if name not in ("time", "attempt"))
    return {name: np.array([number(line.get(name)) for line in lines]) for name in names}
