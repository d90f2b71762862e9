"""What a pass draws: each training record once, tables by a temperature, or the classes of a task equally often.

In: which records train, the tables they are of, the labels of a task, settings. Out: groups of records, or all of them
once. Kept: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.order.weighted_epochs import apportion
from finetune.labels.read import TaskLabels


@dataclass(frozen=True, slots=True)
class TrainingSamples:
    """Each record that trains, once a pass (a `data.order.sampler.SampleSource`)."""

    trains: NDArray[np.bool_]
    """(N,) whether a record does."""

    def size(self, wanted: int) -> int:
        """Number of records, those that do not train included."""
        del wanted
        return len(self.trains)

    def records(self, items: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """The items themselves, -1 for one that does not train."""
        del key
        return np.where(self.trains[items], items, -1)

    def in_order(self, epoch: int) -> bool:
        """False: every pass is permuted."""
        del epoch
        return False


class SampleGroup(NamedTuple):
    """Training records that share a number of draws."""

    name: str
    """For readers: a table, or a class."""
    records: NDArray[np.int64]
    """At least one, rising."""
    draws: int
    """How many draws of a pass are from them."""


def groups_of(
    temperature: float,
    balance: str | None,
    trains: NDArray[np.bool_],
    tables: Mapping[str, NDArray[np.int64]],
    tasks: Sequence[TaskLabels],
) -> list[SampleGroup]:
    """The groups that a pass draws from; none where it draws each training record once.

    A pass has as many draws as there are training records. Over tables, n^(1/T) of table after table decides, where n
    is the number of its training records; a record of two tables counts and is drawn in both. Over classes, those
    records that have a label of the task are drawn as often as before, and equally often of each class; those without
    one are drawn once.

    Args:
        temperature: T of the weights n^(1/T) of several tables.
        balance: name of the task whose classes are drawn equally often.
        trains: (N,) whether a record trains.
        tables: location of each of several tables -> the records that it has a row of, rising.
        tasks: all tasks, among which is the one to balance.

    Raises:
        ValueError: the task to balance has several columns.
    """
    if balance is not None:
        return _of_classes(next(each for each in tasks if each.settings.name == balance), trains)
    if temperature == 1:
        return []
    filled = {name: training for name, records in tables.items() if len(training := records[trains[records]])}
    draws = apportion(int(trains.sum()), [len(records) ** (1 / temperature) for records in filled.values()])
    return [SampleGroup(*of_table, count) for of_table, count in zip(filled.items(), draws, strict=True)]


def _of_classes(task: TaskLabels, trains: NDArray[np.bool_]) -> list[SampleGroup]:
    """The groups of the classes of a task, and of the records without a label of it."""
    if len(task.outputs) > 1:
        raise ValueError(
            f"data.balance is {task.settings.name!r}, a task of {len(task.outputs)} columns, whose classes cannot all "
            "be drawn equally often; name a task of one column, or leave data.balance out"
        )
    records = np.flatnonzero(trains)
    is_labelled = np.diff(task.labels.pointers)[records] > 0
    labelled, others = records[is_labelled], records[~is_labelled]
    of_class = task.labels.values[task.labels.pointers[labelled]]
    classes = np.unique(of_class)
    draws = apportion(len(labelled), [1] * len(classes))
    groups = [
        SampleGroup(f"{task.settings.name} = {task.classes[int(each)]}", labelled[of_class == each], count)
        for each, count in zip(classes, draws, strict=True)
    ]
    return [*groups, *([SampleGroup(f"no {task.settings.name}", others, len(others))] if len(others) else [])]
