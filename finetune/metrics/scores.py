"""Scores of tasks on one part of a split, as runs, bundles and reports keep them, and readers see them.

In: a `TaskScore` for each task. Out: numbers, a line. Kept: nothing. Only the standard library.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

FEWEST_LABELS = 10
"""A task with fewer labels in a part is not scored there."""
_TITLES = {
    "spearman": "Spearman",
    "auroc": "AUROC",
    "macro_auroc": "macro AUROC",
    "mean_auroc": "mean AUROC",
    "kendall": "Kendall",
    "concordance": "concordance",
    "pearson": "Pearson",
    "rmse": "RMSE",
    "rmse_unit": "RMSE in the unit",
    "ndcg_10": "NDCG at 10 %",
    "top_10_recall": "top-10 % recall",
    "ap": "AP",
    "positive_ratio": "share of positives (AP by chance)",
    "ef1": "EF at 1 %",
    "ef1_most": "EF at 1 % of a perfect ranking",
    "ef1_items": "items in the first 1 %",
    "mcc": "MCC",
    "f1": "F1",
    "macro_f1": "macro F1",
    "accuracy": "accuracy",
    "majority": "share of the most frequent class",
    "quadratic_kappa": "quadratic kappa",
    "comparable_pairs": "comparable pairs",
    "calibration_error": "calibration error",
}
"""Names of metrics as readers see them; others have their own."""


def title(metric: str) -> str:
    """The name of a metric as readers see it."""
    return _TITLES.get(metric, metric)


NO_VALIDATION = "no validation row has a label"
"""Why there is no calibration, a default penalty, and a checkpoint that is chosen on training rows."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """How well one task is predicted; or why that cannot be said."""

    task: str
    """Name of the output."""
    objective: str
    type: str
    metric: str
    """Name of the ranking metric."""
    chance: float
    """Its value for a prediction without information; the best one is 1."""
    value: float | None
    """Its value, the higher the better; None for a task that is undefined."""
    low: float | None
    """Lower end of the 95 % interval over clusters of relatives; None where there is none."""
    high: float | None
    labels: int
    """Labels that the metric is made of."""
    groups: int
    """Clusters of relatives that the interval leaves out; 0 in a validation, which has no interval."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Other metrics by name, what chance gives among them."""
    class_counts: Mapping[str, int] = field(default_factory=dict)
    """Labels of each class in this part, or exact values, ``<`` and ``>`` of censored ones."""
    untrained: Mapping[str, int] = field(default_factory=dict)
    """Labels of classes that training lacked; they are left out of every number."""
    undefined: str = ""
    """Why the task has no value; empty if it has one."""
    notes: tuple[str, ...] = ()
    in_mean: bool = True
    """Whether it enters the stopping metric by itself; columns of a multilabel task enter it as their mean."""

    def __post_init__(self) -> None:
        if not self.chance < 1:  # in a file of somebody else
            raise ValueError(f"{self.metric!r} is 1 at best and {self.chance} by chance, so that nothing can be better")

    @property
    def title(self) -> str:
        """The metric as readers see it."""
        return title(self.metric)

    @property
    def skill(self) -> float | None:
        """(value - chance) / (best - chance): 1 for a perfect ranking, 0 for none, below 0 for a reversed one."""
        return None if self.value is None else (self.value - self.chance) / (1.0 - self.chance)

    def finite(self) -> "TaskScore":
        """The same without numbers that are not finite, each with a note; undefined where that is its value."""
        lost = [name for name, value in self.values.items() if not math.isfinite(value)]
        has_value = self.value is None or math.isfinite(self.value)
        if has_value and not lost:
            return self
        notes = (*self.notes, *(f"{title(name)} is no finite number" for name in lost))
        kept = {name: value for name, value in self.values.items() if name not in lost}
        undefined = self.undefined if has_value else f"its {self.title} is no finite number"
        value, low, high = (self.value, self.low, self.high) if has_value else (None, None, None)
        return replace(self, value=value, low=low, high=high, values=kept, notes=notes, undefined=undefined)

    def numbers(self) -> dict[str, float]:
        """All that is a number, by name."""
        known = {} if self.value is None else {self.metric: self.value}
        ends = {"low": self.low, "high": self.high, "labels": float(self.labels), "groups": float(self.groups) or None}
        return {**known, **{name: value for name, value in ends.items() if value is not None}, **self.values}


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Scores of all tasks on one part."""

    tasks: tuple[TaskScore, ...]

    @classmethod
    def joined(cls, parts: Iterable["TaskScores"]) -> Self:
        """The scores of several objectives together; a number that is not finite is none, with a note."""
        return cls(tuple(task.finite() for part in parts for task in part.tasks))

    @property
    def defined(self) -> tuple[TaskScore, ...]:
        """Tasks with a value."""
        return tuple(task for task in self.tasks if task.value is not None)

    @property
    def undefined(self) -> tuple[TaskScore, ...]:
        """Tasks that cannot be scored, each with its reason."""
        return tuple(task for task in self.tasks if task.value is None)

    @property
    def stopping_metric(self) -> float:
        """Mean skill of the defined tasks, the higher the better; NaN where none is defined."""
        skills = [task.skill for task in self.tasks if task.in_mean and task.skill is not None]
        return math.fsum(skills) / len(skills) if skills else math.nan

    def numbers(self) -> dict[str, dict[str, float]]:
        """For metrics.jsonl: name of a task -> name of a number -> number; undefined tasks have none."""
        names = Counter(task.task for task in self.tasks)
        return {
            task.task if names[task.task] == 1 else f"{task.objective}/{task.task}": task.numbers()
            for task in self.defined
        }

    def line(self) -> str:
        """One line: the stopping metric, the first tasks, and how many are undefined."""
        shown = [f"{task.task} {task.title} {task.value:.3f}" for task in self.defined[:4] if task.value is not None]
        more = len(self.defined) - len(shown)
        rest = [f"{more} more tasks"] if more else []
        undefined = [f"{len(self.undefined)} undefined"] if self.undefined else []
        skill = "" if math.isnan(self.stopping_metric) else f"skill {self.stopping_metric:.3f}: "
        return skill + ", ".join([*shown, *rest, *undefined])
