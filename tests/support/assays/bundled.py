"""A run of seconds on a table of three tasks, whose bundle is predicted with, and what its tests read and draw."""

import csv
from pathlib import Path

import numpy as np

from finetune.__main__ import main as train
from zymogen.keyed_random import hashes, integers, key

RECIPE = """
[run]
directory = "{folder}/run"
evaluate_every = 4
[model]
preset = "esm2_60k"
[data]
table = "{folder}/train.csv"
crop_tokens = 40
bin_tokens = 64
bins_per_step = 2
store_dir = "{folder}/stores"
too_long = "start"
[[tasks]]
name = "kd"
unit = "nM"
transform = "p"
type = "regression"
[[tasks]]
name = "fold"
type = "multiclass"
[[tasks]]
name = "ss"
level = "residue"
type = "multiclass"
[split]
by = "random"
[adaptation]
kind = "lora"
[schedule]
passes = 3
peak_lr = 1e-2
"""


def letters(number: int, length: int) -> str:
    drawn = integers(hashes(key(number), np.arange(length)), 20)
    return "".join("ACDEFGHIKLMNPQRSTVWY"[each] for each in drawn.tolist())


def run_in(root: Path) -> None:
    """Write the table and the recipe into a folder, and run it: the run is ``run`` there."""
    with (root / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "kd", "fold", "ss"])
        for number in range(30):
            sequence = letters(number, 10 + number % 9)
            states = "".join("HEC"[ord(letter) % 3] for letter in sequence)
            writer.writerow([sequence, 10 ** (1 + number % 4), ["a", "b", "c-d"][number % 3], states])
    (root / "mine.toml").write_text(RECIPE.format(folder=root))
    assert train([str(root / "mine.toml")]) == 0


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
