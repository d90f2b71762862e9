"""The runs of the track: each arm with each seed is trained once, as `python -m pretrain` trains, and then scored.

In: an arm, a size, a seed, a length. Out: `Scored`. Kept: the run directories and, in each, `scored.npz`.

A run is one process with one thread, so that two of them may share two cores: what they learn does not depend on the
time.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.arms import ARMS, RATES, RECIPE
from benchmarks.learning.corpus import Proteins
from benchmarks.learning.scored import Scored
from data.durable import replaced
from data.recipe.settings import DataSettings
from data.recipe.toml_file import read
from pretrain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Run:
    """One arm with one seed."""

    arm: str
    size: str
    """800k or 8m."""
    tokens: int
    """Real tokens that it trains on."""
    seed: int

    def folder(self, runs: Path) -> Path:
        """Where it lies."""
        name = "".join(c if c.isalnum() else "-" for c in self.arm)
        return runs / f"{name}_{self.size}_{self.tokens}_{self.seed}"

    def words(self, runs: Path, proteins: Proteins) -> list[str]:
        """Its command line, after the name of the program."""
        arm = ARMS[self.arm]
        rate = RATES[self.size]
        rates = {"rate": rate, "half": rate / 2, "twice": 2 * rate, "less": rate / 2**0.5}
        settings = [setting.format(size=self.size, **rates) for setting in arm.settings]
        presets = [] if any("preset" in setting for setting in settings) else [f"model.preset=esm2_{self.size}"]
        return [
            *("benchmarks.learning.trials", ",".join(arm.trials), str(_recipe(runs))),
            *_places(proteins, runs),
            f"run.directory={self.folder(runs)}",
            f"run.seed={self.seed}",
            f"schedule.total_tokens={self.tokens}",
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
    with folder.with_suffix(".log").open("a") as log:

        def run_program(*words: str) -> None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, "-m", *words], env=environment, stdout=log, stderr=log, check=True)

        if not (folder / "export" / "config.json").exists():
            run_program(*run.words(runs, proteins))
        if not kept.exists():
            data = [str(proteins.frozen)] if frozen else []
            run_program("benchmarks.learning.scored", str(folder), str(kept), *data)
    return Scored.read(kept)


def _recipe(runs: Path) -> Path:
    recipe = runs / "recipe.toml"
    if not recipe.exists() or recipe.read_text(encoding="utf-8") != RECIPE:
        with replaced(recipe, "give another folder") as new:
            new.write_text(RECIPE, encoding="utf-8")
    return recipe


def _places(proteins: Proteins, runs: Path) -> list[str]:
    return [
        f"data.sources={json.dumps([str(proteins.rest)])}",
        f"data.clusters={proteins.clusters}",
        f"data.store_dir={runs / 'stores'}",
    ]
