"""What the training labels of a task decide: z-scores, counts of classes, which tasks are trained at all.

In: `TaskLabels`, which records train. Out: `Task`s. Kept: nothing. NumPy alone.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import EXACT, Labels
from finetune.labels.read import TaskLabels
from finetune.tasks.task import Task


def objectives(tasks: Sequence[TaskLabels], training: NDArray[np.bool_]) -> tuple[Task, ...]:
    """The objectives of some tasks.

    Mean and standard deviation are those of the exact training labels, or of all where none is exact; bounds count as
    they are written.

    Args:
        tasks: each with labels of all records.
        training: (N,) which records train.

    Raises:
        ValueError: no training record has a label of a task; classes do not differ. Of several
            tasks in one objective, one that has labels of two classes, or numbers, is enough.
    """
    return tuple(_objective(task, training) for task in tasks)


def counts_by_part(task: TaskLabels, parts: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.int64]]:
    """(O,) labels of each output in each part; a part is a boolean over records.

    A task without labels in a part is *undefined* there: it has no metric, and is listed.
    """
    of_labels = _records_of(task.labels)
    num_outputs = len(task.outputs)
    return {
        name: np.bincount(task.labels.outputs[part[of_labels]], minlength=num_outputs) for name, part in parts.items()
    }


def labelled_records(tasks: Sequence[TaskLabels]) -> dict[str, NDArray[np.int64]]:
    """The records that have a label of each output of some tasks, by its name; rising."""
    found = {}
    for task in tasks:
        pairs = np.unique(np.stack([task.labels.outputs, _records_of(task.labels)]), axis=1)
        bounds = np.searchsorted(pairs[0], np.arange(len(task.outputs) + 1))
        for output, start, stop in zip(task.outputs, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            found[output if output not in found else f"{task.settings.name}: {output}"] = pairs[1, start:stop]
    return found


def _objective(task: TaskLabels, training: NDArray[np.bool_]) -> Task:
    settings, labels, num_outputs = task.settings, task.labels, len(task.outputs)
    is_training = training[_records_of(labels)]
    outputs, values = labels.outputs[is_training], labels.values[is_training].astype(np.float64)
    num_labels = np.bincount(outputs, minlength=num_outputs)
    if not len(outputs):
        raise ValueError(
            f"tasks: no training record has a label of {settings.name!r}, and {len(labels)} of other parts of the "
            "split have one; choose another split, or leave the task out"
        )
    mean, std = np.zeros(num_outputs), np.ones(num_outputs)
    if settings.is_number:
        if labels.censoring is not None:
            exact = labels.censoring[is_training] == EXACT
            used = exact | (np.bincount(outputs[exact], minlength=num_outputs) == 0)[outputs]
            outputs, values = outputs[used], values[used]
        mean, std = _moments(outputs, values, num_outputs)
    counts = np.zeros((num_outputs, len(task.classes)), np.int64)
    if task.classes:
        np.add.at(counts, (outputs, values.astype(np.int64)), 1)
        if (np.count_nonzero(counts, axis=1) < 2).all():
            only = ", ".join(repr(task.classes[at]) for at in np.flatnonzero(counts.sum(axis=0)))
            each = "" if num_outputs == 1 else f" in each of its {num_outputs} outputs alone"
            raise ValueError(
                f"tasks: all {len(outputs)} training labels of {settings.name!r} are {only}{each}: there is nothing to "
                f"tell apart (its classes are {', '.join(map(repr, task.classes))}); choose another split, correct "
                "tasks.classes or tasks.missing, or leave the task out"
            )
    return Task(settings, task.outputs, task.classes, mean, std, counts, task.unit, num_labels)


def _moments(
    outputs: NDArray[np.int32], values: NDArray[np.float64], num_outputs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(O,) mean and standard deviation of each output; 0 and 1 without labels, 1 where they do not vary."""
    counts = np.maximum(np.bincount(outputs, minlength=num_outputs), 1)
    mean = np.bincount(outputs, values, num_outputs) / counts
    std = np.sqrt(np.bincount(outputs, (values - mean[outputs]) ** 2, num_outputs) / counts)
    # What is left of equal labels by rounding is no variation.
    return mean, np.where(std > 1e-9 * np.maximum(np.abs(mean), 1e-30), std, 1.0)


def _records_of(labels: Labels) -> NDArray[np.int64]:
    """(M,) record of each label."""
    return np.repeat(np.arange(labels.num_records), np.diff(labels.pointers))
