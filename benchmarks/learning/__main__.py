"""Which arm learns more from the same tokens: a table on proteins that no arm saw, with what counting reaches.

    python -m benchmarks.learning PROTEINS ... [--arms NAME ...] [--size 800k] [--tokens 1_200_000] [--seeds 0 1 2]
    python -m benchmarks.learning PROTEINS ... --seconds 300 --arms NAME ... --seeds 0 1 2 3 4
    python -m benchmarks.learning PROTEINS ... --frozen --arms NAME
    python -m benchmarks.learning PROTEINS ... --others --seconds 300 --trainer --arms NAME
    python -m benchmarks.learning PROTEINS ... --structure flip_secondary_structure_splits.zip

Every arm is trained with every seed by `python -m pretrain`, two at a time, on the same proteins; with --seconds, one
at a time on one process for each GPU or two on a CPU, from the start of its command to the end. Compared are losses
on whole clusters that were held out, every target masked, in pairs: the same seed, the same proteins. The frozen set is
read by --frozen alone, once for each line of a final table; arms are chosen without it. A run that has finished is not
run again, so the same command continues after an interruption; --minutes begins no run after that time.

A win is a mean difference beyond 2 s / sqrt(seeds), s being the standard deviation of the difference over the seeds,
of all arms together: that of one arm with three seeds may be small by luck. The interval draws clusters: it is about
other proteins, and s about other seeds. With --structure, every run is also judged by the secondary structure that a
ridge reads from its frozen encoder (`judged`), and an arm that is worse there by so much has not won. With --trainer,
`transformers.Trainer` trains as long, with a grid of settings.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from benchmarks.learning.arms import ARMS, PUBLISHED
from benchmarks.learning.corpus import Proteins, clusters_of, proteins
from benchmarks.learning.judged import Judged, judge, neighbours
from benchmarks.learning.runs import Run, judged, seconds_of, settings_of, trained
from benchmarks.learning.scored import Scored
from benchmarks.learning.structure import Structures, structures
from benchmarks.learning.table import by_loss, by_structure, line, rows
from benchmarks.learning.theirs import GRID, by_trainer
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from data.corpus.prepare import open_corpora, prepare_corpora
from data.settings import DataSettings
from pretrain.baselines.fit import measure
from pretrain.evaluate.frozen_set import frozen_set

AT_A_TIME = 2
_SCORED = 10_000
"""More than are held out."""
OF_TRAINER = 1.2
"""Least gain of an arm, over that of the best Trainer."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, then print the table and the JSON line."""
    asked = parse_options(_parser(), arguments)
    if unknown := [name for name in asked.arms if name not in ARMS]:
        sys.exit(f"there is no arm {unknown[0]!r}; there are: {'; '.join(ARMS)}")
    if asked.others and asked.frozen:
        sys.exit("--others has no frozen set: leave out --frozen")
    if asked.trainer and not asked.seconds:
        sys.exit("--trainer trains as long as an arm: give --seconds, too")
    try:
        known = structures(asked.structure) if asked.structure else None
    except ValueError as error:
        sys.exit(f"--structure {error}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        files = proteins(tuple(asked.proteins), asked.folder, others=asked.others)
    except ValueError as error:
        sys.exit(str(error))
    names = list(dict.fromkeys([PUBLISHED, *asked.arms]))
    tokens = 0 if asked.seconds else asked.tokens
    runs = [Run(name, asked.size, tokens, seed, asked.seconds) for seed in asked.seeds for name in names]
    settings = settings_of(files, asked.folder)
    prepare_corpora(settings)
    by_what = _Structure(asked.structure, known, settings.crop_tokens) if known else None
    end = time.monotonic() + 60 * asked.minutes
    found, found_structure = _all(runs, asked.folder, files, end, by_what, frozen=asked.frozen)
    which = "the frozen set" if asked.frozen else "held-out clusters"
    title = f"{asked.size}, {runs[0].length}"
    print(f"{title}, {which}; nats a residue below residue frequencies\n")
    clusters = clusters_of(files)
    _print_baselines(files, asked.folder, clusters, frozen=asked.frozen)
    if known:
        _print_neighbours(known)
    printed = []
    if found:
        loss, structure = by_loss(found, clusters), by_structure(found_structure) if found_structure else None
        for name in names:
            if loss.values(name):
                print(line(name, loss, structure), flush=True)
        printed = rows(names, loss)
    if asked.seconds and found:
        took = [seconds_of(run, asked.folder) for run in found]
        print(f"the runs took {min(took):.0f} to {max(took):.0f} s")
    others = {run.folder(Path()).name: scored.gain for run, scored in found.items()}
    others |= {f"{run.folder(Path()).name}: SS3": each.q3 for run, each in found_structure.items()}
    if asked.trainer and found:
        theirs = _trained_by_trainer(runs[0], asked.folder, files, end)
        others |= theirs
        if len(theirs) == len(GRID):
            best = max(theirs.values())
            for name in asked.arms:
                gains = [scored.gain for run, scored in found.items() if run.arm == name]
                if gains:
                    printed.append(Row(f"{name}: gain", "the best Trainer", mean(gains) / best, OF_TRAINER, "higher"))
    report("learning", printed, title, others, record=asked.record)


class _Structure(NamedTuple):
    """The judge beside loss."""

    path: Path
    known: Structures
    crop_tokens: int


def _all(
    runs: Sequence[Run], folder: Path, files: Proteins, end: float, by_what: _Structure | None, *, frozen: bool
) -> tuple[dict[Run, Scored], dict[Run, Judged]]:
    """The runs that have finished, in their order; none begins after `end`."""
    fingerprint = by_what.known.fingerprint if by_what else ""

    def one(run: Run) -> tuple[Scored, Judged | None] | None:
        try:
            if time.monotonic() > end:
                return None
            scored = trained(run, folder, files, frozen=frozen)
            if by_what is None:
                return scored, None
            return scored, judged(run.folder(folder), by_what.crop_tokens, by_what.path, fingerprint)
        except subprocess.CalledProcessError:
            print(f"{run.folder(folder)} failed: see {run.folder(folder).with_suffix('.log')}", flush=True)
            return None

    with ThreadPoolExecutor(1 if runs[0].seconds else AT_A_TIME) as pool:
        found = {run: both for run, both in zip(runs, pool.map(one, runs), strict=True) if both is not None}
    by_structure = {run: structure for run, (_, structure) in found.items() if structure is not None}
    return {run: scored for run, (scored, _) in found.items()}, by_structure


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
    scored_in = corpora = open_corpora(settings, prepare_corpora(settings))
    if frozen:
        own = DataSettings(sources=(str(files.frozen),), store_dir=settings.store_dir, validation_fraction=0.0)
        scored_in = open_corpora(own, prepare_corpora(own))
    scored = frozen_set(scored_in.reader, scored_in.validation, settings.crop_tokens, _SCORED)
    _, groups = np.unique([clusters[name] for name in scored_in.names(scored.samples)], return_inverse=True)
    for each in measure(corpora, settings, scored, groups, 0):
        interval = f"({each.scores.gain_low:.4f} to {each.scores.gain_high:.4f})"
        print(f"{each.name:40}{each.scores.gain:8.4f}  {interval}  {each.seconds:6.1f} s", flush=True)


def _print_neighbours(known: Structures) -> None:
    """What the ridge of the judge reads from residues alone."""
    began = time.perf_counter()
    found = judge(neighbours, known)
    print(
        f"{'SS3 of seven neighbours a side, linear':40}{found.q3:8.4f}  {time.perf_counter() - began:6.1f} s",
        flush=True,
    )


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
    parser.add_argument(
        "--structure", type=Path, metavar="FILE.zip", help="judge runs by FLIP's secondary structure, too"
    )
    parser.add_argument("--trainer", action="store_true", help="train by transformers.Trainer for as long, too")
    return parser


if __name__ == "__main__":
    main()
