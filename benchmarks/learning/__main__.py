"""Which arm learns more from the same tokens: a table on proteins that no arm saw, with what counting reaches.

    python -m benchmarks.learning PROTEINS ... [--arms NAME ...] [--size 800k] [--tokens 1_200_000] [--seeds 0 1 2]
    python -m benchmarks.learning PROTEINS ... --seconds 300 --arms NAME ... --seeds 0 1 2 3 4
    python -m benchmarks.learning PROTEINS ... --frozen --arms NAME
    python -m benchmarks.learning PROTEINS ... --others --seconds 300 --trainer --arms NAME

Every arm is trained with every seed by `python -m pretrain`, two at a time, on the same proteins; with --seconds, one
at a time on one process for each GPU or two on a CPU, from the start of its command to the end. Compared are losses
on whole clusters that were held out, every target masked, in pairs: the same seed, the same proteins. The frozen set is
read by --frozen alone, once for each line of a final table; arms are chosen without it. A run that has finished is not
run again, so the same command continues after an interruption; --minutes begins no run after that time.

A win is a mean difference beyond 2 s / sqrt(seeds), s being the standard deviation of the difference over the seeds,
of all arms together: that of one arm with three seeds may be small by luck. The interval draws clusters: it is about
other proteins, and s about other seeds. With --trainer, `transformers.Trainer` trains as long, with a grid of settings.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean, variance

import numpy as np

from benchmarks.learning.arms import ARMS, PUBLISHED
from benchmarks.learning.corpus import Proteins, clusters_of, proteins
from benchmarks.learning.runs import Run, seconds_of, settings_of, trained
from benchmarks.learning.scored import Scored
from benchmarks.learning.theirs import GRID, by_trainer
from benchmarks.report import Row, report
from data.corpus.prepare import open_corpora, prepare
from data.recipe.settings import DataSettings
from pretrain.baselines.measured import measure
from pretrain.evaluation.evaluate import intervals
from pretrain.evaluation.frozen import frozen_set

AT_A_TIME = 2
_SCORED = 10_000
"""More than are held out."""
OF_TRAINER = 1.2
"""Least gain of an arm, over that of the best Trainer."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, then print the table and the JSON line."""
    asked = _parser().parse_args(arguments)
    if unknown := [name for name in asked.arms if name not in ARMS]:
        sys.exit(f"there is no arm {unknown[0]!r}; there are: {'; '.join(ARMS)}")
    if asked.others and asked.frozen:
        sys.exit("--others has no frozen set: leave out --frozen")
    if asked.trainer and not asked.seconds:
        sys.exit("--trainer trains as long as an arm: give --seconds, too")
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        files = proteins(tuple(asked.proteins), asked.folder, others=asked.others)
    except ValueError as error:
        sys.exit(str(error))
    names = list(dict.fromkeys([PUBLISHED, *asked.arms]))
    tokens = 0 if asked.seconds else asked.tokens
    runs = [Run(name, asked.size, tokens, seed, asked.seconds) for seed in asked.seeds for name in names]
    prepare(settings_of(files, asked.folder))
    end = time.monotonic() + 60 * asked.minutes
    found = _all(runs, asked.folder, files, end, frozen=asked.frozen)
    which = "the frozen set" if asked.frozen else "held-out clusters"
    title = f"{asked.size}, {runs[0].length}"
    print(f"{title}, {which}; nats a residue below residue frequencies\n")
    clusters = clusters_of(files)
    _print_baselines(files, asked.folder, clusters, frozen=asked.frozen)
    pairs = {name: _pairs(name, found) for name in names}
    noise = _noise([[mine.gain - other.gain for mine, other in of_arm] for of_arm in pairs.values()])
    for name in names:
        _print_arm(name, found, pairs[name], noise, clusters)
    rows = [row for name, of_arm in pairs.items() for row in _rows(name, of_arm)]
    if asked.seconds and found:
        took = [seconds_of(run, asked.folder) for run in found]
        print(f"the runs took {min(took):.0f} to {max(took):.0f} s")
    others = {run.folder(Path()).name: scored.gain for run, scored in found.items()}
    if asked.trainer and found:
        theirs = _trained_by_trainer(runs[0], asked.folder, files, end)
        others |= theirs
        if len(theirs) == len(GRID):
            best = max(theirs.values())
            for name in asked.arms:
                gains = [scored.gain for run, scored in found.items() if run.arm == name]
                if gains:
                    rows.append(Row(f"{name}: gain", "the best Trainer", mean(gains) / best, OF_TRAINER, "higher"))
    report("learning", rows, title, others)


def _all(runs: Sequence[Run], folder: Path, files: Proteins, end: float, *, frozen: bool) -> dict[Run, Scored]:
    """The runs that have finished, in their order; none begins after `end`."""

    def one(run: Run) -> Scored | None:
        try:
            return trained(run, folder, files, frozen=frozen) if time.monotonic() < end else None
        except subprocess.CalledProcessError:
            print(f"{run.folder(folder)} failed: see {run.folder(folder).with_suffix('.log')}", flush=True)
            return None

    with ThreadPoolExecutor(1 if runs[0].seconds else AT_A_TIME) as pool:
        return {run: scored for run, scored in zip(runs, pool.map(one, runs), strict=True) if scored is not None}


def _trained_by_trainer(run: Run, folder: Path, files: Proteins, end: float) -> dict[str, float]:
    """Print and return the gain of each Trainer of the grid, by its name; none begins after `end`."""
    gains: dict[str, float] = {}
    for each in GRID:
        if time.monotonic() > end:
            break
        gains[each.name] = by_trainer(each, run, folder, files).gain
        print(f"{each.name:40}{gains[each.name]:8.4f}", flush=True)
    return gains


def _print_baselines(files: Proteins, folder: Path, clusters: Mapping[str, str], *, frozen: bool) -> None:
    settings = settings_of(files, folder)
    scored_in = corpora = open_corpora(settings, prepare(settings))
    if frozen:
        own = DataSettings(sources=(str(files.frozen),), store_dir=settings.store_dir, validation_fraction=0.0)
        scored_in = open_corpora(own, prepare(own))
    scored = frozen_set(scored_in.shelves, scored_in.validation, settings.crop_tokens, _SCORED)
    _, groups = np.unique([clusters[name] for name in scored_in.names(scored.samples)], return_inverse=True)
    for each in measure(corpora, settings, scored, groups, 0):
        interval = f"({each.scores.gain_low:.4f} to {each.scores.gain_high:.4f})"
        print(f"{each.name:40}{each.scores.gain:8.4f}  {interval}  {each.seconds:6.1f} s", flush=True)


Pairs = list[tuple[Scored, Scored]]


def _pairs(name: str, found: Mapping[Run, Scored]) -> Pairs:
    """An arm's scores beside those of `PUBLISHED` with the same seed; none of `PUBLISHED` itself."""
    if name == PUBLISHED:
        return []
    published = {run: replace(run, arm=PUBLISHED) for run in found if run.arm == name}
    return [(found[run], found[other]) for run, other in published.items() if other in found]


def _noise(differences: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation of a difference over seeds, of all arms together; None where no arm has two."""
    several = [of_arm for of_arm in differences if len(of_arm) > 1]
    if not several:
        return None
    return float(np.sqrt(sum(variance(each) * (len(each) - 1) for each in several) / sum(len(e) - 1 for e in several)))


def _print_arm(
    name: str, found: Mapping[Run, Scored], pairs: Pairs, noise: float | None, clusters: Mapping[str, str]
) -> None:
    gains = [scored.gain for run, scored in found.items() if run.arm == name]
    if not gains:
        return
    line = f"{name:40}{mean(gains):8.4f}  ({', '.join(f'{gain:.4f}' for gain in gains)})"
    if pairs:
        difference = mean(mine.gain - other.gain for mine, other in pairs)
        low, high = _interval(pairs, clusters)
        line += f"  {difference:+.4f} (clusters {low:+.4f} to {high:+.4f}"
        if noise is not None:
            least = 2 * noise / len(pairs) ** 0.5
            verdict = "won" if difference > least else "lost" if difference < -least else "undecided"
            line += f", 2s/sqrt(n) {least:.4f}: {verdict}"
        line += ")"
    print(line, flush=True)


def _rows(name: str, pairs: Pairs) -> list[Row]:
    """What the gain of an arm is to that of `PUBLISHED`."""
    if not pairs:
        return []
    mine, other = (mean(scored.gain for scored in side) for side in zip(*pairs, strict=True))
    return [Row(f"{name}: gain", PUBLISHED, mine / other, 1.0, "higher")]


def _interval(pairs: Pairs, clusters: Mapping[str, str]) -> tuple[float, float]:
    """95 % interval over clusters of the mean difference over seeds."""
    first = pairs[0][0]
    losses = np.stack([np.mean([scored.losses for scored in side], axis=0) for side in zip(*pairs, strict=True)], 1)
    _, groups = np.unique([clusters[name] for name in first.names.tolist()], return_inverse=True)
    _, _, low, high = intervals(np.column_stack([losses, first.targets]), groups)
    return low, high


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "proteins", nargs="+", help="FASTA files or patterns, as data.sources; the frozen set is theirs"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"), help="folder of the runs")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="NAME", help="by default all")
    parser.add_argument("--size", choices=["800k", "8m"], default="800k", help="of the model")
    parser.add_argument("--tokens", type=int, default=1_200_000, help="real tokens of each run")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each run, in place of tokens")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after this time")
    parser.add_argument("--frozen", action="store_true", help="score on the frozen set")
    parser.add_argument("--others", action="store_true", help="other proteins, of which none are frozen")
    parser.add_argument("--trainer", action="store_true", help="train by transformers.Trainer for as long, too")
    return parser


if __name__ == "__main__":
    main()
