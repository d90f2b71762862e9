"""The table: every arm beside `PUBLISHED` with the same seeds, by loss and by a judge beside it, and who has won.

In: sums over the proteins of every run. Out: lines, and `Row`s of the report. Kept: nothing.

A difference counts beyond 2 s / sqrt(seeds), s being the standard deviation of the difference over the seeds, of all
arms together: that of one arm with three seeds may be small by luck. An arm has won whose loss is better by more than
that, and which the judge does not find worse by more than that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, variance

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.arms import PUBLISHED
from benchmarks.learning.judged import Judged
from benchmarks.learning.runs import Run
from benchmarks.learning.scored import Scored
from benchmarks.report import Row
from pretrain.evaluate.validation import intervals


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One number of every run, where more is better: a sum over proteins, divided by how much each protein counts."""

    sums: Mapping[Run, NDArray[np.float64]]
    """(proteins,) of each run."""
    counts: Mapping[Run, NDArray[np.int64]]
    """(proteins,) what the sums are over."""
    groups: NDArray[np.int64]
    """(proteins,) which of them an interval draws together."""
    drawn: str
    """What these groups are called."""
    title: str = ""
    """What stands before the number in a line."""

    def value(self, run: Run) -> float:
        """The number of a run."""
        return float(self.sums[run].sum() / self.counts[run].sum())

    def values(self, arm: str) -> list[float]:
        """The number of each run of an arm."""
        return [self.value(run) for run in self.sums if run.arm == arm]

    def pairs(self, arm: str) -> list[tuple[Run, Run]]:
        """An arm's runs beside those of `PUBLISHED` with the same seed; none of `PUBLISHED` itself."""
        if arm == PUBLISHED:
            return []
        published = {run: replace(run, arm=PUBLISHED) for run in self.sums if run.arm == arm}
        return [(run, other) for run, other in published.items() if other in self.sums]

    def differences(self, arm: str) -> list[float]:
        """By how much an arm is better with each seed."""
        return [self.value(mine) - self.value(other) for mine, other in self.pairs(arm)]

    def noise(self) -> float | None:
        """The standard deviation of a difference over seeds, of all arms together; None where no arm has two."""
        arms = dict.fromkeys(run.arm for run in self.sums)
        several = [found for found in map(self.differences, arms) if len(found) > 1]
        if not several:
            return None
        squares = sum(variance(found) * (len(found) - 1) for found in several)
        return float(np.sqrt(squares / sum(len(found) - 1 for found in several)))

    def least(self, arm: str) -> float | None:
        """Beyond how much the mean difference of an arm counts; None where that is not known."""
        noise, pairs = self.noise(), len(self.pairs(arm))
        return None if noise is None or not pairs else 2 * noise / pairs**0.5

    def sign(self, arm: str) -> int | None:
        """1 where an arm is better beyond noise, -1 where it is worse, else 0; None where that is not known."""
        least = self.least(arm)
        if least is None:
            return None
        difference = mean(self.differences(arm))
        return int(difference > least) - int(difference < -least)

    def interval(self, arm: str) -> tuple[float, float]:
        """95 % interval over the groups of the mean difference over seeds; NaN where there is one group."""
        mine, other = (np.mean([self.sums[run] for run in side], axis=0) for side in zip(*self.pairs(arm), strict=True))
        counts = self.counts[self.pairs(arm)[0][0]]
        _, _, low, high = intervals(np.column_stack([other, mine, counts]), self.groups)
        return low, high

    def said(self, arm: str) -> str:
        """What a line says of an arm that has runs."""
        values = self.values(arm)
        said = f"{self.title}{mean(values):7.4f}  ({', '.join(f'{value:.4f}' for value in values)})"
        if not self.pairs(arm):
            return said
        low, high = self.interval(arm)
        said += f"  {mean(self.differences(arm)):+.4f} ({self.drawn} {low:+.4f} to {high:+.4f}"
        least = self.least(arm)
        return said + (f", 2s/sqrt(n) {least:.4f})" if least is not None else ")")


def by_loss(found: Mapping[Run, Scored], clusters: Mapping[str, str]) -> Measure:
    """Nats a residue below residue frequencies.

    Args:
        found: of each run.
        clusters: header of a protein -> name of its cluster.
    """
    names = next(iter(found.values())).names.tolist()
    _, groups = np.unique([clusters[name] for name in names], return_inverse=True)
    sums = {run: scored.unigram - scored.losses for run, scored in found.items()}
    return Measure(sums, {run: scored.targets for run, scored in found.items()}, groups, "clusters")


def by_structure(found: Mapping[Run, Judged]) -> Measure:
    """Share of residues whose secondary structure is right."""
    groups = np.arange(len(next(iter(found.values())).names))
    sums = {run: judged.correct.astype(np.float64) for run, judged in found.items()}
    return Measure(sums, {run: judged.residues for run, judged in found.items()}, groups, "proteins", "SS3")


def line(arm: str, loss: Measure, structure: Measure | None) -> str:
    """The line of an arm that has runs, by loss and by the judge beside it, if there is one."""
    said = f"{arm:40} {loss.said(arm)}"
    if structure is not None:
        said += f"  {structure.said(arm)}"
    if (sign := loss.sign(arm)) is None:
        return said
    return f"{said}: {verdict(sign, 0 if structure is None else structure.sign(arm))}"


def verdict(loss: int, structure: int | None) -> str:
    """Whether an arm has won.

    Args:
        loss: `Measure.sign` of the loss.
        structure: the same of the judge beside loss; 0 where none was asked.
    """
    if loss <= 0:
        return "lost" if loss else "undecided"
    if structure is None:
        return "undecided, as its SS3 is not known"
    return "won" if structure >= 0 else "not won, as its SS3 is worse"


def rows(arms: Sequence[str], loss: Measure) -> list[Row]:
    """What the gain of each arm is to that of `PUBLISHED`."""
    found = []
    for arm in arms:
        if pairs := loss.pairs(arm):
            mine, other = (mean(map(loss.value, side)) for side in zip(*pairs, strict=True))
            found.append(Row(f"{arm}: gain", PUBLISHED, mine / other, 1.0, "higher"))
    return found
