"""One run of `benchmarks.assays`: the command `python -m finetune` on a recipe, in this process.

In: a recipe's file. Out: an `Outcome`. Kept: the run directory and the stores that the recipe names.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data.homology import mmseqs
from finetune.__main__ import main
from finetune.look.sizes import FROZEN_BELOW
from finetune.recipe import Recipe
from finetune.results.results import FILE, Results
from zymogen.settings.toml_file import read
from zymogen.trainer.run.directory import RunDirectory


class Outcome(NamedTuple):
    """What a run wrote at its end, and how long it took."""

    results: Results
    seconds: float
    """Wall time without MMseqs2."""
    mmseqs_s: float
    """Wall time of MMseqs2: the nearest neighbours by alignment, and the audit of the split."""
    proposed: str
    """What `finetune.look` proposes for as many proteins: 'frozen' or 'lora'."""


@dataclass
class _Aligned:
    seconds: float = 0.0


@contextmanager
def _mmseqs_timed() -> Iterator[_Aligned]:
    """Counts the time that MMseqs2 takes meanwhile."""
    run, aligned = mmseqs.run, _Aligned()

    def timed(work: Path, *arguments: str) -> None:
        began = time.perf_counter()
        run(work, *arguments)
        aligned.seconds += time.perf_counter() - began

    mmseqs.run = timed
    try:
        yield aligned
    finally:
        mmseqs.run = run


def measure(path: Path, overrides: Sequence[str]) -> Outcome:
    """Train and test as a recipe says.

    Raises:
        SystemExit: the run failed; it has said why.
    """
    began = time.perf_counter()
    with _mmseqs_timed() as aligned:
        status = main([str(path), *overrides])
    if status:
        sys.exit(status)
    seconds = time.perf_counter() - began - aligned.seconds
    directory = Path(read(Recipe, path, overrides).run.directory)
    proteins = RunDirectory(directory).read().corpus["records"]
    proposed = "frozen" if proteins < FROZEN_BELOW else "lora"
    return Outcome(Results.read(directory / FILE), seconds, aligned.seconds, proposed)
