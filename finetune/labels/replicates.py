"""Replicates: several measurements of one thing become one label, and how well they agree.

In: measurements, each with its row. Out: `Labels`; the agreement, which is the ceiling of a metric. Kept: nothing.
NumPy alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import ABOVE, BELOW, EXACT, Labels
from finetune.labels.other_columns import UnusedColumns
from finetune.tasks.settings import TaskSettings
from zymogen.settings.section import listed

_SHOWN, _SHOWN_COLUMNS, _SHOWN_NAME = 5, 3, 60
LEAST_AGREEMENT = 30
"""Labels of several measurements below which nothing is said of their agreement."""


class Replicates(NamedTuple):
    """What was measured of one objective, one item for each measurement, in any order."""

    rows: NDArray[np.int64]
    """(m,) row of the table, for errors."""
    records: NDArray[np.int64]
    """(m,) record that was measured."""
    outputs: NDArray[np.int64]
    """(m,) output of the objective."""
    values: NDArray[np.float64]
    """(m,) in the task's scale, or the index of a class."""
    censoring: NDArray[np.int8]
    """(m,) `EXACT`, `BELOW` or `ABOVE`."""
    positions: NDArray[np.int32] | None = None
    """(m,) or (m, 2): residue or pair of residues; None for whole sequences."""


def merge_replicates(
    measured: Replicates,
    settings: TaskSettings,
    num_records: int,
    where: Callable[[int], str],
    outputs: tuple[str, ...],
    said: list[str],
    others: UnusedColumns | None = None,
) -> Labels:
    """One label for everything that was measured, whether once or several times.

    The mean or median is taken in the task's scale, so that of a logarithm is a geometric one. If some measurements are
    ``<v`` and none is ``>v``, the mean of the numbers as written bounds the true mean from above, and the label is
    ``<mean``; a median is exact where it does not depend on how far below the censored ones are.

    Args:
        measured: the measurements.
        settings: of the task: what becomes of replicates, and whether labels are numbers.
        num_records: number of records, N.
        where: the row of a number for errors, with its file.
        outputs: names of the outputs, for errors.
        said: gets a sentence on labels that are left out, as their measurements contradict each other, and on columns
            in which rows of one label differ.
        others: columns of the table that nothing reads. A label has no spread where its rows differ in one of them.

    Raises:
        ValueError: replicates are refused; classes of one thing differ; one measurement of it is ``<v`` and another
            ``>v``, so that nothing is known of their mean; rows of one label have different mutations. The message
            names rows.
    """
    places = () if measured.positions is None else tuple(np.atleast_2d(measured.positions.T))
    keys = measured.records, *places, measured.outputs
    order = np.lexsort((measured.rows, measured.values, *reversed(keys)))  # values rise, for the median
    sorted_keys = [key[order] for key in keys]
    begins = np.ones(len(order), np.bool_)  # whether a measurement is of another thing than the one before it
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in sorted_keys])
    first = np.flatnonzero(begins)
    counts = np.diff(np.append(first, len(order)))
    values, censoring = measured.values[order], measured.censoring[order]

    def refuse(wrong: NDArray[np.bool_], said: str, remedy: str) -> None:
        if wrong.any():
            group = int(np.argmax(wrong))
            rows = np.sort(measured.rows[order[first[group] : first[group] + counts[group]]]).tolist()
            shown = listed([where(row) for row in rows], _SHOWN)
            task = outputs[int(sorted_keys[-1][first[group]])][:_SHOWN_NAME]
            others = f" ({int(wrong.sum())} labels have this)" if wrong.sum() > 1 else ""
            raise ValueError(f"{shown}: {said} of {task!r} for one sequence{others}; {remedy}")

    if settings.replicates == "refuse":
        remedy = "remove all but one, or choose replicates = 'mean' or 'median' in [[tasks]]"
        refuse(counts > 1, "several measurements", remedy)
    is_replicated = bool((counts > 1).any())
    lowest, highest = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
    below, above = np.minimum.reduceat(censoring, first), np.maximum.reduceat(censoring, first)
    torn = (below == BELOW) & (above == ABOVE) if settings.is_number else lowest != highest
    leaves_out = settings.replicates == "leave_out"
    if leaves_out and others is not None and is_replicated:
        torn |= others.contradicting(measured.rows[order], first)
    if leaves_out and torn.any():
        said.append(
            f"{settings.name}: labels left out, as rows of one sequence contradict each other: {int(torn.sum()):,}"
        )
        stay = order[~np.repeat(torn, counts)]
        rest = Replicates._make(each if each is None else each[stay] for each in measured)
        return merge_replicates(rest, settings, num_records, where, outputs, said, others)
    differing = others.differing(measured.rows[order], first) if others is not None and is_replicated else {}
    contradiction = "different classes", "correct or remove one of them, or mark one as missing"
    if settings.is_number:
        remedy = "nothing is known of their mean: remove one of them"
        contradiction = "one measurement is below and another above a number", remedy
    refuse(torn, *contradiction)
    bounds = np.where(below == BELOW, below, above)
    means = np.add.reduceat(values, first) / counts
    merged_values = means
    if settings.replicates == "median":
        merged_values = _medians(values, first, counts)
        farthest = np.where(censoring == EXACT, values, np.where(censoring == BELOW, -np.inf, np.inf))
        known = _medians(farthest[np.lexsort((farthest, np.repeat(first, counts)))], first, counts) == merged_values
        bounds = np.where(known, EXACT, bounds)
    merged_values = np.where(lowest == highest, lowest, merged_values)  # no rounding where there is nothing to average
    spread = _spread(values, censoring, means, first, counts)
    for of_column in differing.values():
        spread[of_column] = np.nan
    if differing and settings.is_number:
        said.append(_in_words(settings, {name: int(found.sum()) for name, found in differing.items()}))
    return Labels(
        pointers=np.concatenate([[0], np.cumsum(np.bincount(sorted_keys[0][first], minlength=num_records))]),
        outputs=measured.outputs[order][first].astype(np.int32),
        values=merged_values.astype(np.float32),
        censoring=bounds.astype(np.int8) if bounds.any() else None,
        positions=None if measured.positions is None else measured.positions[order][first],
        replicates=counts.astype(np.int32) if is_replicated else None,
        spread=spread if is_replicated else None,
    )


def _in_words(settings: TaskSettings, differing: dict[str, int]) -> str:
    most = sorted(differing, key=lambda name: (-differing[name], name))
    shown = listed([f"{name!r} ({differing[name]:,} labels)" for name in most], _SHOWN_COLUMNS, "more columns")
    return (
        f"{settings.name}: labels are {settings.replicates}s of several rows, which differ in {shown}; for an "
        "output of each value, name the column in conditions of the task"
    )


def _medians(values: NDArray[np.float64], first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(groups,) median of each group of values that rise."""
    low, high = values[first + (counts - 1) // 2], values[first + counts // 2]
    return np.asarray(np.where(low == high, low, (low + high) / 2))


def _spread(
    values: NDArray[np.float64],
    censoring: NDArray[np.int8],
    means: NDArray[np.float64],
    first: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> NDArray[np.float32]:
    """(groups,) sample standard deviation; NaN for one measurement, or where one of them is censored."""
    squared = np.add.reduceat((values - np.repeat(means, counts)) ** 2, first)
    known = (counts > 1) & ~np.logical_or.reduceat(censoring != EXACT, first)
    return np.where(known, np.sqrt(squared / np.maximum(counts - 1, 1)), np.nan).astype(np.float32)


def replicate_agreement(
    labels: Labels, output: int, among: NDArray[np.bool_], least: int = LEAST_AGREEMENT
) -> tuple[int, float, float] | None:
    """The agreement between the replicates of one output, from each label's number of measurements, mean and spread.

    ICC(1) is that of a one-way random-effects model with groups of unequal sizes (Shrout & Fleiss 1979, Psychol. Bull.
    86, 420): (B - W) / (B + (k - 1) W), with the mean squares B between and W within labels and
    k = (m - sum n^2 / m) / (g - 1) for g labels of m measurements. A mean of n measurements has the reliability
    n ICC / (1 + (n - 1) ICC) (Spearman 1910, Brown 1910), and the square root of the labels' mean reliability is the
    highest correlation with them that the truth has. Labels made of one measurement count in it, but not in ICC(1).
    Labels without a spread count in neither: one of their measurements is a bound, or their rows differ in a condition.

    Args:
        labels: made as means; with medians the numbers are approximate.
        output: which output.
        among: (N,) boolean: which records.
        least: fewest labels that tell anything.

    Returns:
        The number of labels that are made of several exact measurements; the intraclass correlation of single
        measurements, ICC(1), which may be below 0; and the highest Pearson correlation with the labels that predictions
        of the truth reach, in [0, 1]. None unless at least so many labels are made of several exact measurements, and
        these differ at all.
    """
    if labels.replicates is None or labels.spread is None:
        return None
    mine = (labels.outputs == output) & np.repeat(among, np.diff(labels.pointers))
    if labels.censoring is not None:
        mine &= labels.censoring == EXACT
    mine &= (labels.replicates == 1) | np.isfinite(labels.spread)
    sizes, spread = labels.replicates[mine].astype(np.float64), labels.spread[mine].astype(np.float64)
    several = sizes > 1
    n, means = sizes[several], labels.values[mine][several].astype(np.float64)
    groups, total = len(n), n.sum()
    if groups < max(least, 2):
        return None
    within = float(((n - 1) * spread[several] ** 2).sum() / (total - groups))
    between = float((n * (means - (n * means).sum() / total) ** 2).sum() / (groups - 1))
    k = (total - (n**2).sum() / total) / (groups - 1)
    if between == within == 0:
        return None
    icc = float((between - within) / (between + (k - 1) * within))
    single = max(icc, 0.0)
    return groups, icc, float(np.sqrt(np.mean(sizes * single / (1 + (sizes - 1) * single))))
