"""What a pass draws: each training record once, or tables by a temperature.

In: which records train, the tables they are of, settings. Out: groups of records, or all of them
once. Kept: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.order.weighted_epochs import apportion


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
    """For readers: a table."""
    records: NDArray[np.int64]
    """At least one, rising."""
    draws: int
    """How many draws of a pass are from them."""


def groups_of(
    temperature: float,
    trains: NDArray[np.bool_],
    tables: Mapping[str, NDArray[np.int64]],
) -> list[SampleGroup]:
    """The groups that a pass draws from; none where it draws each training record once.

    A pass has as many draws as there are training records. Over tables, n^(1/T) of table after table decides, where n
    is the number of its training records; a record of two tables counts and is drawn in both.

    Args:
        temperature: T of the weights n^(1/T) of several tables.
        trains: (N,) whether a record trains.
        tables: location of each of several tables -> the records that it has a row of, rising.
    """
    if temperature == 1:
        return []
    filled = {name: training for name, records in tables.items() if len(training := records[trains[records]])}
    draws = apportion(int(trains.sum()), [len(records) ** (1 / temperature) for records in filled.values()])
    return [SampleGroup(*of_table, count) for of_table, count in zip(filled.items(), draws, strict=True)]
