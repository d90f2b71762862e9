"""A small table with tasks of every type, most of its cells empty, and the recipe of a run of seconds on it."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from data.alphabet import STANDARD_RESIDUES
from finetune.tables.proteins import in_memory

Rows = list[dict[str, str]]

RECIPE = """
[run]
directory = "{folder}/run"
log_every = 1
evaluate_every = 5
checkpoint_every = 4

[model]
preset = "esm2_60k"

[data]
table = "{folder}/assays.csv"
store_dir = "{folder}/stores"
crop_tokens = 64
bin_tokens = 128
bins_per_step = 7             # divisible by neither 2 nor 3: ranks get unequal numbers of bins and labels
window_sequences = 40         # several windows in each pass

[[tasks]]
name = "affinity"
columns = ["affinity_*"]
type = "regression"
weight = 0.5

[[tasks]]
name = "binds"
type = "binary"
classes = ["no", "yes"]

[[tasks]]
name = "place"
type = "multiclass"

[[tasks]]
name = "grade"
type = "ordinal"
classes = ["low", "middle", "high"]

[[tasks]]
name = "state"
type = "multiclass"
level = "residue"

[split]
by = "random"
fractions = [0.6, 0.2, 0.2]

[adaptation]
kind = "frozen"
head_lr = 2.0

[optimizer]
eps = 1e-5                    # one gradient element that starts near eps turns rounding into whole updates

[schedule]
peak_lr = 1e-3
warmup_tokens = 0             # under a warm-up nothing moves, and any engine agrees with any other
final_lr = 1.0
total_tokens = 12_000
"""


def rows(count: int = 160, seed: int = 0) -> Rows:
    """Proteins of 12 to 60 residues; each has half of the labels of sequences, and every fourth those of residues.

    All follow from the protein's composition. Rows are in the order of their records, so that row i is record i.
    """
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        residues = "".join(rng.choice(list(STANDARD_RESIDUES), rng.integers(12, 61)))
        charge = sum(map(residues.count, "KR")) - sum(map(residues.count, "DE"))
        greasy = sum(map(residues.count, "AILMFVW")) / len(residues)
        cells = {
            "affinity_a": f"{charge + 0.1 * rng.standard_normal():.4f}",
            "affinity_b": f"{10 * greasy + 0.1 * rng.standard_normal():.4f}",
            "binds": "yes" if charge > 0 else "no",
            "place": "nucleus" if charge > 1 else "membrane" if greasy > 0.35 else "secreted",
            "grade": ("low", "middle", "high")[min(2, int(6 * greasy))],
        }
        shown = {name: cell if rng.random() < 0.5 else "" for name, cell in cells.items()}
        states = "".join("h" if letter in "AILMFVW" else "e" if letter in "KRDE" else "-" for letter in residues)
        made.append({"name": f"p{number}", "sequence": residues, **shown, "state": "" if number % 4 else states})
    digests = in_memory("small", [row["sequence"] for row in made]).digests.tolist()
    in_order = [row for _, row in sorted(zip(digests, made, strict=True), key=lambda each: each[0])]
    return [{**row, "name": f"p{number}"} for number, row in enumerate(in_order)]


def write(folder: Path, change: Callable[[Rows], Rows] = lambda given: given, **how: int) -> Path:
    """Write table and recipe into a folder, and return the recipe's path; `change` gets the rows before that."""
    folder.mkdir(parents=True, exist_ok=True)
    table = change(rows(**how))
    with (folder / "assays.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


def changed(number: int, cells: Mapping[str, str]) -> Callable[[Rows], Rows]:
    """Puts cells into a row of the table."""
    return lambda given: [row | dict(cells) if i == number else row for i, row in enumerate(given)]
