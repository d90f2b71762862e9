"""What a finished run predicted of its tested part, read back from predictions.csv, split.csv and its bundle.

In: a run, or a bundle that lies in one. Out: `ComparedPredictions`. Kept: nothing. Numbers have the seven digits of the
file.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from finetune.bundle.locate import bundles_at
from finetune.bundle.manifest import BundleManifest
from finetune.results import predictions_file
from finetune.results.results import FILE, Results
from finetune.splits import split_file
from finetune.tasks.task import Task
from zymogen.files.suggestions import did_you_mean

_TEST = "test"
_COLUMNS = ("id", "part", "task", "position", "truth", "ranking")


class LabelPrediction(NamedTuple):
    """A label, and by what metrics rank it, as predictions.csv has them."""

    truth: str
    ranking: str


@dataclass(frozen=True, slots=True)
class ComparedPredictions:
    """The tested labels of a run, and what it predicted of them."""

    root: Path
    """The run directory."""
    results: Results
    objectives: tuple[Task, ...]
    tasks: Mapping[str, Mapping[tuple[str, str], LabelPrediction]]
    """Name of a task -> (digest of the sequence, position) of each label -> label and prediction."""
    clusters: Mapping[str, str]
    """Digest -> what an interval leaves out together."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Digest -> id."""


def read(path: Path) -> ComparedPredictions:
    """What a run predicted.

    Args:
        path: a run that has come to its end, or its ``bundle``.

    Raises:
        ValueError: it is neither, or one of its files is missing or damaged.
    """
    root = next((each for each in (path, path.absolute().parent) if (each / FILE).is_file()), None)
    if root is None:
        raise ValueError(
            f"{path} lies in no finished fine-tuning run ({FILE} is missing){did_you_mean(path, files=False)}: the "
            "labels that it is compared on, and its predictions of them, are files of the run; name the run"
        )
    if not (root / split_file.FILE).is_file():
        raise ValueError(f"{root} is one fold or seed of a run, without the split of the whole; name {root.parent}")
    results = Results.read(root / FILE)
    objectives = BundleManifest.read(bundles_at(root)[0]).tasks
    lines = split_file.lines_of(root / split_file.FILE)
    tasks = _tasks(root / predictions_file.FILE, {name: line.digest for name, line in lines.items()})
    clusters = {line.digest: line.cluster for line in lines.values()}
    return ComparedPredictions(
        root, results, objectives, tasks, clusters, {line.digest: name for name, line in lines.items()}
    )


def _tasks(path: Path, digests: Mapping[str, str]) -> dict[str, dict[tuple[str, str], LabelPrediction]]:
    """Labels of the tested part; of validation where nothing was tested."""
    found: dict[str, dict[str, dict[tuple[str, str], LabelPrediction]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                name, part, task, position, *cell = (line[column] for column in _COLUMNS)
                of_task, key = found.setdefault(part, {}).setdefault(task, {}), (digests[name], position)
                if key in of_task:
                    raise ValueError(f"it has two predictions of task {task!r} for {name!r}")
                of_task[key] = LabelPrediction(*cell)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; start the run again to write it") from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} holds no predictions of a run: {error}; start the run again to write it") from None
    return found.get(_TEST) or next(iter(found.values()), {})
