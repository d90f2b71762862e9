"""Weighted epochs: passes in which each of several groups of records is drawn a given number of times.

In: the records of each group, how often a pass draws from it, a seed, a pass and a window. Out: `WindowSamples`. Kept:
nothing.

Each group is drawn in rounds of its own: a round is a permutation of its records, and where one ends the next begins,
across passes. So after any number of passes the records of a group were drawn equally often, or one time more; a group
that has fewer draws than records is gone through over several passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.order.sampler import Permutation, WindowSamples
from zymogen import keyed_random


@dataclass(frozen=True, slots=True)
class WeightedEpochs:
    """The windows of several groups, pass after pass (a `sampler.Sampler`).

    Raises:
        ValueError: a group has no record, or no draw.
    """

    groups: Sequence[NDArray[np.int64]]
    """The sample ids of each group; an id may be in several groups."""
    draws: Sequence[int]
    """How many draws of a pass are from each group."""
    seed: int
    window_sequences: int

    def __post_init__(self) -> None:
        sizes = [len(group) for group in self.groups]
        if len(sizes) != len(self.draws) or min([*sizes, *self.draws], default=0) < 1:
            raise ValueError(
                f"{list(self.draws)} draws of groups of {sizes} records; each group needs a record and a draw"
            )

    def window(self, epoch: int, window: int) -> WindowSamples | None:
        """The samples of a window, each with its group's round; None after the last window of the epoch."""
        start, stop = window * self.window_sequences, min((window + 1) * self.window_sequences, self._total)
        if start >= stop:
            return None
        arrival = Permutation(self._total, keyed_random.key(self.seed, keyed_random.ARRIVAL, epoch))
        places = arrival(np.arange(start, stop))
        ends = np.cumsum(self.draws)
        of_group = np.searchsorted(ends, places, side="right")
        samples, rounds = np.empty_like(places), np.empty_like(places)
        for number, draws in enumerate(self.draws):
            mine = np.flatnonzero(of_group == number)
            positions = epoch * draws + places[mine] - (int(ends[number]) - draws)
            samples[mine], rounds[mine] = self._drawn(number, positions)
        return WindowSamples(samples, rounds)

    def _drawn(self, number: int, positions: NDArray[np.int64]) -> WindowSamples:
        """The samples at positions of a group's endless order."""
        group = self.groups[number]
        rounds, items = np.divmod(positions, len(group))
        for each in np.unique(rounds).tolist():
            mine = rounds == each
            order = Permutation(len(group), keyed_random.key(self.seed, keyed_random.ORDER, each, number))
            items[mine] = order(items[mine])
        return WindowSamples(group[items], rounds)

    def distinct(self, passes: int) -> int:
        """Number of different samples that the first passes draw."""
        seen = (
            self._drawn(number, np.arange(min(len(group), passes * draws))).samples
            for number, (group, draws) in enumerate(zip(self.groups, self.draws, strict=True))
        )
        return len(np.unique(np.concatenate([np.zeros(0, np.int64), *seen])))

    @property
    def is_below_a_window(self) -> bool:
        """Whether a pass is one window, and not full."""
        return self._total < self.window_sequences

    def share_of_first_window(self) -> float | None:
        """Share of a pass."""
        return min(1.0, self.window_sequences / self._total)

    @property
    def _total(self) -> int:
        return sum(self.draws)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to weights, by largest remainder, the first of equal ones; each at least 1.

    They add up to `total`, or to a little more where a weight would have given less than 1.
    """
    exact = [total * weight / math.fsum(weights) for weight in weights]
    counts = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: (counts[number] - exact[number], number))
    for number in by_remainder[: total - sum(counts)]:
        counts[number] += 1
    return [max(1, count) for count in counts]
