"""The runs of the track: each arm with each seed is trained once, as `python -m pretrain` trains, and then scored.

In: an arm, a size, a seed, a length. Out: `Scored`, and `Judged`. Kept: the run directories and, in each, `scored.npz`
and `structure.npz`.

A run of so many tokens is one process with one thread, so that two of them may share two cores: what they learn does
not depend on the time. A run of so many seconds is one process for each GPU, or two on a CPU, launched as the README
says, and nothing may run beside it; how many tokens it takes, short runs of its arm and size have told.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.learning.arms import ARMS, RATES, RECIPE
from benchmarks.learning.corpus import Proteins
from benchmarks.learning.judged import Judged
from benchmarks.learning.scored import Scored
from data.settings import DataSettings
from pretrain.recipe import Recipe
from zymogen.files.durable import replacing_file
from zymogen.settings.toml_file import read

_ROOT = Path(__file__).parents[2]
_SHORT = 100_000
"""Tokens of the first of the short runs by which a run's time becomes tokens; each next one has four times as many."""
_APART_S = 10.0
"""Until one takes so much longer than the first."""
PROCESSES = min(4, torch.cuda.device_count()) or 2
"""What a run of so many seconds is made of: a process for each GPU, of which a step can use four, or two on a CPU."""
_LAUNCH = ("accelerate.commands.launch", "--config_file", str(_ROOT / "accelerate_configs/ddp.yaml"))


@dataclass(frozen=True, slots=True)
class Run:
    """One arm with one seed."""

    arm: str
    size: str
    """800k or 8m."""
    tokens: int
    """Real tokens that it trains on; 0: as many as it takes in `seconds`."""
    seed: int
    seconds: float = 0.0
    """From the start of its command to the end, on `PROCESSES`; 0: it is one process."""

    @property
    def length(self) -> str:
        """How long it is, for the user."""
        return f"{self.tokens:,} tokens" if self.tokens else f"{self.seconds:g} s of {PROCESSES} processes"

    def folder(self, runs: Path) -> Path:
        """Where it lies."""
        name = "".join(c if c.isalnum() else "-" for c in self.arm)
        length = f"{self.tokens}{f'-on-{PROCESSES}' if self.seconds else ''}" if self.tokens else f"{self.seconds:g}s"
        return runs / f"{name}_{self.size}_{length}_{self.seed}"

    def words(self, runs: Path, proteins: Proteins, tokens: int) -> list[str]:
        """Its command line of so many tokens, after the name of the program."""
        arm = ARMS[self.arm]
        rate = RATES[self.size]
        rates = {"rate": rate, "half": rate / 2, "twice": 2 * rate, "less": rate / 2**0.5}
        parts = {"a_third": tokens // 3, "two_thirds": 2 * tokens // 3}
        settings = [setting.format(size=self.size, **rates, **parts) for setting in arm.settings]
        presets = [] if any("preset" in setting for setting in settings) else [f"model.preset=esm2_{self.size}"]
        trials = ",".join(trial.format(**parts) for trial in arm.trials)
        return [
            *("benchmarks.learning.trials", trials or ",", str(_recipe(runs))),  # no empty word: the launcher minds it
            *_places(proteins, runs),
            f"run.directory={self.folder(runs)}",
            f"run.seed={self.seed}",
            f"schedule.total_tokens={tokens}",
            *presets,
            *settings,
        ]


def settings_of(proteins: Proteins, runs: Path) -> DataSettings:
    """The data settings that all runs share."""
    recipe = read(Recipe, _recipe(runs), _places(proteins, runs))
    return recipe.data


def trained(run: Run, runs: Path, proteins: Proteins, *, frozen: bool = False) -> Scored:
    """Train and score a run, unless that was done before.

    Args:
        run: one arm with one seed.
        runs: the folder of the track.
        proteins: of the track.
        frozen: whether the frozen set is scored, and not what the run held out.

    Raises:
        subprocess.CalledProcessError: the training failed; its log is beside its directory.
    """
    folder = run.folder(runs)
    kept = folder / ("frozen.npz" if frozen else "scored.npz")
    _train(run, runs, proteins)
    if not kept.exists():
        data = [str(proteins.frozen)] if frozen else []
        run_program(folder, "benchmarks.learning.scored", str(folder), str(folder), str(kept), *data)
    return Scored.read(kept)


def judged(folder: Path, crop_tokens: int, structure: Path, fingerprint: str) -> Judged:
    """Judge a finished run by secondary structure, unless that was done before on the same proteins.

    Args:
        folder: of the run.
        crop_tokens: longest document of its training.
        structure: the file of `structure.structures`.
        fingerprint: of what it holds.

    Raises:
        subprocess.CalledProcessError: it failed; its log is beside the folder.
    """
    kept = folder / "structure.npz"
    if not kept.exists() or Judged.read(kept).fingerprint != fingerprint:
        run_program(folder, "benchmarks.learning.judged", str(folder), str(crop_tokens), str(structure), str(kept))
    return Judged.read(kept)


def seconds_of(run: Run, runs: Path) -> float:
    """How long the training of a run took, from the start of its command to the end."""
    return float((run.folder(runs) / "seconds.txt").read_text(encoding="utf-8"))


def _train(run: Run, runs: Path, proteins: Proteins) -> None:
    folder = run.folder(runs)
    if (folder / ("seconds.txt" if run.seconds else "export/config.json")).exists():
        return
    tokens = run.tokens or _tokens_in(run, runs, proteins)
    if run.seconds:
        shutil.rmtree(folder, ignore_errors=True)  # of a start that was interrupted: its time would be lost
    began = time.perf_counter()
    launched = (*_LAUNCH, "--num_processes", str(PROCESSES), "-m") if run.seconds else ()
    run_program(folder, *launched, *run.words(runs, proteins, tokens))
    if run.seconds:
        with replacing_file(folder / "seconds.txt", "give another folder") as new:
            new.write_text(f"{time.perf_counter() - began:.1f}\n", encoding="utf-8")


def _tokens_in(run: Run, runs: Path, proteins: Proteins) -> int:
    """The tokens that a run takes in its time, after what two short runs of its arm and size took."""

    def took(tokens: int) -> float:
        short = replace(run, tokens=tokens, seed=0)
        _train(short, runs, proteins)
        return seconds_of(short, runs)

    least = took(_SHORT)
    tokens: int = next(n for n in (_SHORT * 4**power for power in itertools.count(1)) if took(n) - least >= _APART_S)
    return round(_SHORT + (run.seconds - least) * (tokens - _SHORT) / (took(tokens) - least))


def run_program(folder: Path, *words: str, threads: int = 1) -> None:
    """Run a program of this project to its end, with so many threads a process; what it says is beside `folder`."""
    with folder.with_suffix(".log").open("a") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([sys.executable, "-m", *words], env=environment, stdout=log, stderr=log, check=True)


def _recipe(runs: Path) -> Path:
    recipe = runs / "recipe.toml"
    if not recipe.exists() or recipe.read_text(encoding="utf-8") != RECIPE:
        with replacing_file(recipe, "give another folder") as new:
            new.write_text(RECIPE, encoding="utf-8")
    return recipe


def _places(proteins: Proteins, runs: Path) -> list[str]:
    return [
        f"data.sources={json.dumps([str(proteins.rest)])}",
        f"data.clusters={proteins.clusters}",
        f"data.store_dir={runs / 'stores'}",
    ]
