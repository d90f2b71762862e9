"""Which arm learns more from the same tokens: a table on proteins that no arm saw, with what counting reaches.

    python -m benchmarks.learning PROTEINS ... [--arms NAME ...] [--size 800k] [--tokens 1_200_000] [--seeds 0 1 2]
    python -m benchmarks.learning PROTEINS ... --seconds 300 --arms NAME ... --seeds 0 1 2 3 4
    python -m benchmarks.learning PROTEINS ... --frozen --arms NAME

Every arm is trained with every seed by `python -m pretrain`, two at a time, on the same proteins; with --seconds, one
at a time on one process for each GPU or two on a CPU, from the start of its command to the end. Compared are losses
on whole clusters that were held out, every target masked, in pairs: the same seed, the same proteins. The frozen set is
read by --frozen alone, once for each line of a final table; arms are chosen without it. A run that has finished is not
run again, so the same command continues after an interruption; --minutes begins no run after that time.

A win is a mean difference beyond 2 s / sqrt(seeds), s being the standard deviation of the difference over the seeds of
the arm. The interval draws clusters: it is about other proteins, and s about other seeds.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.learning.arms import ARMS, PUBLISHED
from benchmarks.learning.corpus import Proteins, clusters_of, proteins
from benchmarks.learning.runs import Run, seconds_of, settings_of, trained
from benchmarks.learning.scored import Scored
from benchmarks.report import Row, report
from data.corpus.prepare import open_corpora, prepare
from pretrain.baselines.measured import measure
from pretrain.evaluation.evaluate import intervals

AT_A_TIME = 2
_VALIDATED = 10_000
"""More than are held out."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, then print the table and the JSON line."""
    asked = _parser().parse_args(arguments)
    if unknown := [name for name in asked.arms if name not in ARMS]:
        sys.exit(f"there is no arm {unknown[0]!r}; there are: {'; '.join(ARMS)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        files = proteins(tuple(asked.proteins), asked.folder)
    except ValueError as error:
        sys.exit(str(error))
    names = list(dict.fromkeys([PUBLISHED, *asked.arms]))
    tokens = 0 if asked.seconds else asked.tokens
    runs = [Run(name, asked.size, tokens, seed, asked.seconds) for seed in asked.seeds for name in names]
    prepare(settings_of(files, asked.folder))
    found = _all(runs, asked.folder, files, 60 * asked.minutes, frozen=asked.frozen)
    which = "the frozen set" if asked.frozen else "held-out clusters"
    title = f"{asked.size}, {runs[0].length}"
    print(f"{title}, {which}; nats a residue below residue frequencies\n")
    if not asked.frozen:
        _print_baselines(files, asked.folder)
    clusters = clusters_of(files)
    rows = [_row(name, found, clusters) for name in names if any(run.arm == name for run in found)]
    if asked.seconds and found:
        took = [seconds_of(run, asked.folder) for run in found]
        print(f"the runs took {min(took):.0f} to {max(took):.0f} s")
    others = {run.folder(Path()).name: scored.gain for run, scored in found.items()}
    report("learning", [row for row in rows if row is not None], title, others)


def _all(runs: Sequence[Run], folder: Path, files: Proteins, seconds: float, *, frozen: bool) -> dict[Run, Scored]:
    """The runs that have finished, in their order."""
    end = time.monotonic() + seconds

    def one(run: Run) -> Scored | None:
        try:
            return trained(run, folder, files, frozen=frozen) if time.monotonic() < end else None
        except subprocess.CalledProcessError:
            print(f"{run.folder(folder)} failed: see {run.folder(folder).with_suffix('.log')}", flush=True)
            return None

    with ThreadPoolExecutor(1 if runs[0].seconds else AT_A_TIME) as pool:
        return {run: scored for run, scored in zip(runs, pool.map(one, runs), strict=True) if scored is not None}


def _print_baselines(files: Proteins, folder: Path) -> None:
    settings = settings_of(files, folder)
    corpora = open_corpora(settings, prepare(settings))
    for each in measure(corpora, settings, _VALIDATED, 0):
        print(f"{each.name:40}{each.scores.gain:8.4f}  {each.seconds:6.1f} s", flush=True)


def _row(name: str, found: dict[Run, Scored], clusters: Mapping[str, str]) -> Row | None:
    """Print the line of an arm; return what its gain is to that of `PUBLISHED`."""
    own = {run.seed: scored for run, scored in found.items() if run.arm == name}
    gains = [scored.gain for scored in own.values()]
    line = f"{name:40}{mean(gains):8.4f}  ({', '.join(f'{gain:.4f}' for gain in gains)})"
    pairs = [
        (scored, found[other])
        for run, scored in found.items()
        if run.arm == name and (other := replace(run, arm=PUBLISHED)) in found and name != PUBLISHED
    ]
    if not pairs:
        print(line, flush=True)
        return None
    differences = [mine.gain - other.gain for mine, other in pairs]
    low, high = _interval(pairs, clusters)
    noise = f"2s/sqrt(n) {2 * stdev(differences) / len(pairs) ** 0.5:.4f}, " if len(pairs) > 1 else ""
    print(f"{line}  {mean(differences):+.4f} ({noise}clusters {low:+.4f} to {high:+.4f})", flush=True)
    others = mean(other.gain for _, other in pairs)
    return Row(f"{name}: gain", PUBLISHED, mean(mine.gain for mine, _ in pairs) / others, 1.0, "higher")


def _interval(pairs: Sequence[tuple[Scored, Scored]], clusters: Mapping[str, str]) -> tuple[float, float]:
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
    return parser


if __name__ == "__main__":
    main()
