"""Coverage of the 95 % intervals of scores in simulations whose truth is known.

    python -m benchmarks.intervals
    python -m benchmarks.intervals --repetitions 200 --only folds

In: nothing. Out: a table and the JSON line of `benchmarks.report`; the Monte Carlo error of each figure is among the
others. Kept: nothing. The truth is the score of a table so large that it hardly varies; the width of an oracle is the
distance between the 2.5 % and 97.5 % quantiles of the scores of all repetitions.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from finetune.labels.labels import ABOVE, EXACT
from finetune.metrics import weighted
from finetune.metrics.calibration import conformal_half_width
from finetune.metrics.predictions import LabelPredictions, LabelRows, censoring_of
from finetune.metrics.resampling import SHARED_TRAINING, difference_interval, jackknife, score_interval
from finetune.metrics.weighted import Statistic
from finetune.results.merge import joined_predictions
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task

Floats = NDArray[np.float64]
Rng = np.random.Generator
LEAST, MOST, WIDEST = 0.90, 0.99, 1.5
"""What the coverage of a 95 % interval may be, and its width beside the oracle's from 10 clusters and 50 labels on."""
_GRADES = (-0.5, 0.5)


class Found(NamedTuple):
    """One repetition."""

    value: float
    low: float
    high: float


class Case(NamedTuple):
    """A simulation."""

    name: str
    draw: Callable[[Rng], Found]
    truth: Callable[[], float]
    is_wide: bool = False
    """Whether its width is compared with that of the oracle."""


def objective(kind: str, mean: float = 0.0) -> Task:
    """A task; of classes, three, or two for yes and no."""
    classes = {"regression": (), "binary": ("no", "yes")}.get(kind, ("low", "middle", "high"))
    settings = TaskSettings(name="t", type=kind)
    counts = np.full((1, len(classes)), 9, np.int64)
    return Task(settings, ("t",), classes, np.full(1, mean), np.ones(1), counts)


def table(kind: str, truth: Floats, guess: Floats, *, censored: bool = False) -> LabelPredictions:
    """Predictions of a task of some type from a truth and a guess that are normal."""
    censoring = np.where(truth > 0.7, ABOVE, EXACT).astype(np.int8) if censored else None
    labels, prediction = np.minimum(truth, 0.7) if censored else truth, guess
    if kind == "binary":
        labels, prediction = (truth > 0).astype(np.float64), 1 / (1 + np.exp(-guess))
    elif kind != "regression":
        labels = np.digitize(truth, _GRADES).astype(np.float64)
        away = np.exp(-((guess[:, None] - np.array([-1.0, 0.0, 1.0])) ** 2))
        prediction = away / away.sum(1, keepdims=True)
    return LabelPredictions(
        LabelRows(np.arange(len(truth)), np.zeros(len(truth), np.int64), labels, censoring), prediction
    )


def metric(kind: str, predictions: LabelPredictions) -> tuple[Statistic, float, Floats | None]:
    """The ranking metric of weighted rows, its lowest value, and the classes of the rows if they have some."""
    of, truth = objective(kind), predictions.rows.truth
    found = of.settings.kind.metric(truth, predictions.ranking(of), censoring_of(predictions.rows))
    return found.statistic, 2 * found.chance - 1, None if of.settings.is_number else truth


def scored(kind: str, predictions: LabelPredictions, clusters: NDArray[np.int64]) -> Found:
    """The score of predictions with the interval that `finetune.metrics.scoring` gives it; NaN where there is none."""
    statistic, lowest, classes = metric(kind, predictions)
    found = jackknife(statistic, clusters)
    factor = 1.0 if predictions.relative is None else SHARED_TRAINING
    return Found(found.value, *score_interval(found, lowest, clusters, classes, factor))


def families(rng: Rng, count: int, size: int, slope: float) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Truth and guess of relatives: half of the variance of either is between families."""
    family = np.repeat(np.arange(count), size)
    truth, error = ((rng.normal(size=count)[family] + rng.normal(size=len(family))) / np.sqrt(2) for _ in range(2))
    return truth, slope * truth + error, family


def clustered(kind: str, count: int, size: int, slope: float = 0.7, *, censored: bool = False) -> Case:
    """Families of relatives, or single rows."""

    def draw(rng: Rng) -> Found:
        truth, guess, family = families(rng, count, size, slope)
        return scored(kind, table(kind, truth, guess, censored=censored), family)

    def truth() -> float:
        truth, guess, _ = families(np.random.default_rng(1), 8000 // size if censored else 200_000 // size, size, slope)
        statistic, _, _ = metric(kind, table(kind, truth, guess, censored=censored))
        return float(statistic(np.ones((len(truth), 1)))[0])

    name = f"{'concordance' if censored else kind}, slope {slope:g}, {count} families of {size}"
    return Case(name, draw, truth, count >= 10 and count * size >= 50)


def few(count: int, area: float) -> Case:
    """An AUROC of a handful of labels."""
    from scipy.stats import norm

    shift = float(norm.ppf(area)) * np.sqrt(2)

    def draw(rng: Rng) -> Found:
        yes = rng.permutation(np.arange(count) < max(2, rng.binomial(count, 0.5)))
        if yes.all():
            yes[:2] = False
        labels, guess = yes.astype(np.float64), 1 / (1 + np.exp(-rng.normal(size=count) - shift * yes))
        rows = LabelRows(np.arange(count), np.zeros(count, np.int64), labels)
        return scored("binary", LabelPredictions(rows, guess), np.arange(count))

    return Case(f"AUROC {area:g} of {count} labels", draw, lambda: area)


def out_of_fold(rng: Rng, features: Floats, truth: Floats, penalty: float, folds: int = 5) -> LabelPredictions:
    """Predictions of each fold by a ridge on the others, joined as a run joins them."""
    fold, each, of = rng.permutation(len(truth)) % folds, [], []
    for number in range(folds):
        train, test = fold != number, np.flatnonzero(fold == number)
        mean, middle = truth[train].mean(), features[train].mean(0)
        inside = features[train] - middle
        gram = inside.T @ inside + penalty * np.eye(features.shape[1])
        guess = mean + (features[test] - middle) @ np.linalg.solve(gram, inside.T @ (truth[train] - mean))
        each.append(LabelPredictions(LabelRows(test, np.zeros(len(test), np.int64), truth[test]), guess))
        of.append(objective("regression", float(mean)))
    return joined_predictions(each, of)


def folds(count: int, penalty: float, signal: float) -> Case:
    """Ridge on 20 features in five folds; without a signal the truth is chance, else the mean score of such tables."""

    def draw(rng: Rng) -> Found:
        features = rng.normal(size=(count, 20))
        truth = signal * features[:, :4].sum(1) / 2 + rng.normal(size=count)
        return scored("regression", out_of_fold(rng, features, truth, penalty), np.arange(count))

    def truth() -> float:
        return float(np.mean([draw(np.random.default_rng(n)).value for n in range(1000)])) if signal else 0.0

    return Case(f"five folds of {count}, penalty {penalty:g}, signal {signal:g}", draw, truth, signal > 0)


def compared(count: int, *, in_folds: bool) -> Case:
    """Two models that are equally good, each with its own half of the features: the interval of the difference."""

    def draw(rng: Rng) -> Found:
        features = rng.normal(size=(count, 20))
        truth = 0.5 * features[:, [0, 10]].sum(1) + rng.normal(size=count)
        if in_folds:
            both = [out_of_fold(rng, half, truth, 10.0) for half in (features[:, :10], features[:, 10:])]
            ranks = [each.ranking(objective("regression")) for each in both]
        else:
            ranks = [features[:, at] + rng.normal(size=count) for at in (0, 10)]
        first, second = (weighted.spearman(truth, each) for each in ranks)
        found = jackknife(lambda weights: second(weights) - first(weights), np.arange(count))
        return Found(found.value, *difference_interval(found, SHARED_TRAINING if in_folds else 1.0))

    return Case(f"difference of equals, {'five folds' if in_folds else 'one part'} of {count}", draw, lambda: 0.0)


def families_compared(count: int) -> Case:
    """The same of families of relatives: either model has its own errors, half of their variance between families."""

    def draw(rng: Rng) -> Found:
        truth, guess, family = families(rng, count, 20, 0.7)
        errors, _, _ = families(rng, count, 20, 0.0)
        first, second = (weighted.spearman(truth, each) for each in (guess, 0.7 * truth + errors))
        found = jackknife(lambda weights: second(weights) - first(weights), family)
        return Found(found.value, *difference_interval(found))

    return Case(f"difference of equals, {count} families of 20", draw, lambda: 0.0)


def conformal(count: int, checkpoints: int, *, apart: bool) -> Case:
    """Whether the 90 % interval of a number holds it, by the best of equal checkpoints; the half width as value."""

    def draw(rng: Rng) -> Found:
        errors = rng.normal(size=(checkpoints, 2, count))
        best = int(np.argmin((errors[:, 0] ** 2).mean(1)))
        half = conformal_half_width(errors[best, int(apart)], np.zeros(count))
        new = float(rng.normal())
        return Found(half, new - half, new + half)

    where = "apart from what chose" if apart else "on what chose"
    return Case(f"90 % of numbers, {checkpoints} checkpoints, {count} labels {where}", draw, lambda: 0.0)


def cases() -> Iterator[Case]:
    """All simulations."""
    for count in (3, 5, 10, 30):
        yield clustered("regression", count, 40)
        yield clustered("binary", count, 40)
    yield clustered("regression", 10, 40, 3.0)
    yield clustered("binary", 10, 40, 3.0)
    for count in (10, 50, 200):
        yield clustered("regression", count, 1)
    for count in (3, 10, 30):
        for kind in ("multiclass", "ordinal"):
            yield clustered(kind, count, 20)
        yield clustered("regression", count, 10, censored=True)
    for count in (10, 12, 20, 50):
        for area in (0.5, 0.8, 0.95):
            yield few(count, area)
    for count in (100, 300, 800):
        yield folds(count, 10.0, 0.0)
        yield folds(count, 1e4, 0.0)
    for signal in (0.3, 1.0, 3.0):
        yield folds(100, 10.0, signal)
        yield folds(300, 10.0, signal)
    for count in (100, 300):
        yield compared(count, in_folds=False)
        yield compared(count, in_folds=True)
    for count in (3, 5, 10, 30):
        yield families_compared(count)
    for count in (10, 20, 50, 200):
        yield conformal(count, 30, apart=True)


class Coverage(NamedTuple):
    """What repetitions of a case found."""

    given: float
    """Share of the repetitions that have an interval."""
    held: float
    """Share of these intervals that hold the truth."""
    below: float
    """Share that lie below it."""
    width: float
    """Mean width in those of the oracle."""


def covered(case: Case, repetitions: int, seed: int = 0) -> Coverage:
    """Repeat a case."""
    rng = np.random.default_rng(seed)
    repetitions *= 10 if case.name.startswith("90 %") else 1
    found = np.array([case.draw(rng) for _ in range(repetitions)])
    value, low, high = found[np.isfinite(found[:, 1])].T
    oracle = float(np.diff(np.nanquantile(found[:, 0], (0.025, 0.975)))[0])
    truth = case.truth()
    held = (low <= truth) & (truth <= high)
    width = float(np.mean(high - low)) / oracle
    return Coverage(len(value) / repetitions, float(held.mean()), float((high < truth).mean()), width)


def rows_of(case: Case, found: Coverage) -> Iterator[Row]:
    """What must hold of a case."""
    if case.name.startswith("difference"):
        yield Row(f"{case.name}: called worse", "0.025", found.below, 0.035, "lower")
        return
    promised = 0.9 if case.name.startswith("90 %") else 0.95
    least, most = (0.88, 0.92) if promised == 0.9 else (LEAST, MOST)
    yield Row(f"{case.name}: coverage", f"{promised:g}", found.held, least, "higher")
    yield Row(f"{case.name}: coverage", f"{promised:g}", found.held, most, "lower")
    if case.is_wide:
        yield Row(f"{case.name}: width", "the oracle's", found.width, WIDEST, "lower")
        yield Row(f"{case.name}: has an interval", "1", found.given, 1.0, "higher")


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervals", description=str(__doc__).split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=1000, help="of each case")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose name has one of these words")
    options = parse_options(parser, words)
    chosen = [case for case in cases() if not options.only or any(word in case.name for word in options.only)]
    rows, others = list[Row](), dict[str, object]()
    for case in chosen:
        found = covered(case, options.repetitions)
        share = found.below if case.name.startswith("difference") else found.held
        others[case.name] = {**found._asdict(), "error": float(np.sqrt(share * (1 - share) / options.repetitions))}
        rows += rows_of(case, found)
        print(f"{case.name}: {found}", flush=True)
    report("intervals", rows, others=others, record=options.record)


if __name__ == "__main__":
    main()
