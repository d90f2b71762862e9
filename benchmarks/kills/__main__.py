"""Kill training programs with SIGKILL, and count what their last weights have seen twice or never.

    python -m benchmarks.kills
    python -m benchmarks.kills --quick

In: nothing. Out: a table and the JSON line of `benchmarks.report`, with the figures of the others in `others`. Kept:
nothing. `peers` says what is trained, `killed` how kills are drawn and how the ends are read.
"""

import argparse
import importlib
import tempfile
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from benchmarks.kills.killed import Killed, kill
from benchmarks.kills.peers import PROGRAMS
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options

KILLS, OF_A_RUN = 50, 5


@dataclass(frozen=True, slots=True)
class Sums:
    """All runs of one program."""

    kills: int
    runs: int
    twice: int
    never: int
    failed: int
    same: int
    """Runs that ended with the same bits as one that nobody killed."""

    @classmethod
    def of(cls, found: list[Killed]) -> "Sums":
        """Add the runs up."""
        names = ("kills", "twice", "never", "failed", "same")
        return cls(runs=len(found), **{name: sum(getattr(each, name) for each in found) for name in names})


def main(arguments: list[str] | None = None) -> None:
    """Kill and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four kills of each: that it runs")
    options = parse_options(parser, arguments)
    kills = 4 if options.quick else KILLS
    for name in ("accelerate", "pretrain.__main__", "zymogen.trainer.attempt", "numba"):
        importlib.import_module(name)
    sums = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, program in PROGRAMS.items():
            found: list[Killed] = []
            for seed in count(1):
                left = kills - sum(run.kills for run in found)
                if not left:
                    break
                found.append(kill(name, program, Path(folder) / name, seed, min(left, OF_A_RUN)))
            sums[name] = Sums.of(found)
            print(f"{name}: {sums[name]}", flush=True)
    ours = sums.pop("ours")
    rows = [
        Row(f"ours: {what}", "no kill", value, 0.0, "lower")
        for what, value in (
            ("sequences trained twice", ours.twice),
            ("sequences never trained", ours.never),
            ("starts that failed", ours.failed),
            ("runs that ended with other weights", ours.runs - ours.same),
        )
    ]
    report(
        "kills",
        rows,
        others={name: asdict(each) for name, each in sums.items()} | {"kills of ours": ours.kills},
        record=options.record,
    )


if __name__ == "__main__":
    main()
