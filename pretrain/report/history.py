"""What a run directory tells of its run, whatever of it is there.

In: run.json, metrics.jsonl, what is recorded of the starts, predictions.json, checkpoints. Out: a `History`. Kept:
nothing. Lines that are damaged or half-written are left out, and so are steps that were lost in a restart.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.evaluation.corruptions import trained_as
from pretrain.evaluation.course import Course, course, lasting
from pretrain.evaluation.scores import HeldOut
from pretrain.report.series import Numbers
from pretrain.run.attempts import AttemptRecords
from pretrain.run.directory import PREDICTIONS_FORMAT, RunDirectory
from pretrain.run.records import read_metrics, seconds
from pretrain.run.starts import KILLED, Start, starts

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Validation:
    """Scores at one point."""

    step: int
    tokens: int
    time: float
    scores: Mapping[str, Mapping[str, float | None]]
    set: str = ""
    """Hash of the frozen set; empty of a job without one."""


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint that was written, or could not be."""

    step: int
    time: float
    failed: bool


@dataclass(frozen=True, slots=True)
class History:
    """A run up to now."""

    root: Path
    described: Mapping[str, Any]
    """Content of run.json."""
    columns: Mapping[str, Numbers]
    """By name, (steps,) each: the numbers of the logged steps, NaN where one was not finite or not logged."""
    step: int
    """Steps taken, as far as any line tells, without those that were lost in a restart."""
    tokens: int
    """Tokens seen by then."""
    course: Course
    """The course of its losses, from which the verdict follows."""
    validations: tuple[Validation, ...]
    starts: tuple[Start, ...]
    saves: tuple[Save, ...]
    proteins: tuple[Line, ...]
    """The predictions, as `evaluation.predictions.Prediction` names their fields."""
    parameters: int | None
    """Parameters in the newest checkpoint; None without one."""

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe of the latest start, every field."""
        found: Mapping[str, Any] = self.described.get("recipe", {})
        return found

    @property
    def is_shared(self) -> bool:
        """Whether others may read its checkpoints, and so what the report shows of the corpus."""
        return bool((self.recipe.get("run") or {}).get("shared"))

    @property
    def held_out(self) -> HeldOut | None:
        """What the scored proteins are; None where run.json does not say it."""
        return HeldOut.of(self.described.get("corpus") or {})

    def column(self, name: str) -> Numbers:
        """A column, empty where it was never logged."""
        return self.columns.get(name, np.empty(0))

    @property
    def is_finished(self) -> bool:
        """Whether the run has trained to its last token."""
        return bool(self.starts) and self.starts[-1].exit == "finished"

    @property
    def has_ended(self) -> bool:
        """Whether the last start has written how it ended; a killed one has not."""
        return bool(self.starts) and self.starts[-1].exit != KILLED


def read_history(root: Path) -> History:
    """Read a run directory; a process may be writing in it.

    Raises:
        ValueError: it is no run directory of this program.
    """
    run = RunDirectory(root)
    described = run.read()
    lines = read_metrics(run.metrics)
    all_starts = starts(AttemptRecords.read(run), lines)
    kept = lasting(lines, all_starts)
    return History(
        root=root,
        described=described,
        columns=_columns([line for line in kept if "loss" in line]),
        step=max((line["step"] for line in kept), default=0),  # a save's line is later than its step
        tokens=max((line["tokens"] for line in kept), default=0),
        course=course(kept, trained_as(described.get("recipe", {}).get("data", {}).get("mask", {}))),
        validations=tuple(
            Validation(line["step"], line["tokens"], seconds(line["time"]), line["validation"], line.get("set", ""))
            for line in kept
            if _is_table(line.get("validation"))
        ),
        starts=tuple(all_starts),
        saves=tuple(
            Save(line["step"], seconds(line["time"]), "save_error" in line)
            for line in lines
            if "save_error" in line or "checkpoint_s" in line
        ),
        proteins=tuple(_proteins(run.predictions)),
        parameters=_parameters(run.checkpoints),
    )


def _is_table(scores: Any) -> bool:
    return isinstance(scores, dict) and all(
        isinstance(of, dict) and all(value is None or isinstance(value, (int, float)) for value in of.values())
        for of in scores.values()
    )


def _columns(lines: list[dict[str, Any]]) -> dict[str, Numbers]:
    names = dict.fromkeys(name for line in lines for name in line if name not in ("time", "attempt"))
    columns = {name: np.array([_number(line.get(name)) for line in lines]) for name in names}
    return columns | ({"time": np.array([seconds(line["time"]) for line in lines])} if lines else {})


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _proteins(path: Path) -> list[Line]:
    """The predictions of the finished run; none where the file is not there, or not whole."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != PREDICTIONS_FORMAT:
            return []
        return [line for line in content["proteins"] if _is_protein(line)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_protein(line: Line) -> bool:
    letters, probabilities = line["residues"], line["probabilities"]
    numbers = [line[name] for name in ("corpus", "record", "whole", "first")]
    return (
        isinstance(letters, str)
        and len(letters) == len(probabilities)
        and all(isinstance(number, int) for number in numbers)
        and all(prob is None or isinstance(prob, (int, float)) for prob in probabilities)
    )


def _parameters(checkpoints: Path) -> int | None:
    """Parameters that the newest checkpoint holds, by the shapes in its index."""
    for folder in sorted(checkpoints.glob("step-*"), reverse=True):
        try:
            index = json.loads((folder / "model" / "index.json").read_text())
            return int(sum(math.prod(tensor["shape"]) for tensor in index["tensors"].values()))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
