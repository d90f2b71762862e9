"""The four tables of `benchmarks.assays`: where their files are, what of them is taken, and the recipes of their runs.

In: a folder of real data. Out: a table in one file and a recipe, each as a user would write it. Kept: these two files.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune.tables.read import read_table
from finetune.tables.table import Table
from zymogen import keyed_random

SHARES = {"train": 0.5, "validation": 0.2, "test": 0.3}
"""Shares of the parts where only some rows are taken."""
_SEED = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One table, and the runs on it."""

    name: str
    said: str
    """What is predicted of what, for readers."""
    files: tuple[tuple[str, str], ...]
    """Locations below the folder of data, each with the part that its rows are in; "" where columns say it."""
    columns: tuple[str, ...]
    """Those that are kept."""
    recipe: str
    """`[data]`, `[[tasks]]` and `[split]` in TOML, with {table} and {wild_type} for the places of files."""
    adaptations: Mapping[str, str]
    """Name of a run -> `[adaptation]` and `[schedule]` in TOML."""
    part: Callable[[Table, int], str] | None = None
    """Part of a row of a table whose columns say it; None where another rule of the recipe divides the rows."""
    evaluate_every: int = 100
    """Optimizer steps between validations."""


def _of_flip(set_: str, validation: str) -> Callable[[Table, int], str]:
    """How FLIP's tables say the part of a row: tested, or trained on; of the latter some validate."""

    def part(table: Table, row: int) -> str:
        if table.cells.column(set_)[row].as_py() == "test":
            return "test"
        return "validation" if str(table.cells.column(validation)[row].as_py()).lower() == "true" else "train"

    return part


FROZEN = """
[adaptation]
kind = "frozen"

[schedule]
passes = {passes}
"""
LORA = """
[adaptation]
kind = "lora"

[schedule]
passes = {passes}
"""

CASES = (
    Case(
        name="deeploc",
        said="location (ten classes) and membrane or soluble (37 % missing) of whole proteins",
        files=(
            ("assay/deeploc_test_set.fasta.gz", "train"),
            ("assay/deeploc_our_val_set.fasta.gz", "validation"),
            ("assay/deeploc_setHARD.fasta.gz", "test"),
        ),
        columns=("id", "sequence", "location", "membrane"),
        recipe="""
[data]
table = "{table}"
too_long = "ends"
unknown_letters = "count"
bins_per_step = 2

[[tasks]]
name = "location"
type = "multiclass"

[[tasks]]
name = "membrane"
type = "binary"
classes = ["S", "M"]

[split]
by = "column"
column = "part"
conflict = "held_out"
""",
        adaptations={"frozen": FROZEN.format(passes=20)},
    ),
    Case(
        name="gb1",
        said="fitness of GB1 variants, trained on low values and tested on high ones",
        files=(("assay/flip_gb1_splits.zip/splits/low_vs_high.csv", ""),),
        columns=("sequence", "target"),
        recipe="""
[data]
table = "{table}"
crop_tokens = 512
bins_per_step = 2

[[tasks]]
name = "fitness"
columns = ["target"]
type = "regression"

[split]
by = "column"
column = "part"
""",
        adaptations={"frozen": FROZEN.format(passes=20), "lora": LORA.format(passes=3)},
        part=_of_flip("set", "validation"),
        evaluate_every=60,
    ),
    Case(
        name="ss3",
        said="helix, strand or coil of each resolved residue",
        files=(
            (
                "token/flip_secondary_structure_splits.zip/splits/sequences.fasta?labels=sampled.fasta&mask=mask.fasta",
                "",
            ),
        ),
        columns=("id", "sequence", "labels"),
        recipe="""
[data]
table = "{table}"
too_long = "ends"
unknown_letters = "count"

[[tasks]]
name = "structure"
columns = ["labels"]
type = "multiclass"
level = "residue"

[split]
by = "column"
column = "part"
""",
        adaptations={"frozen": FROZEN.format(passes=3)},
        part=_of_flip("SET", "VALIDATION"),
        evaluate_every=120,
    ),
    Case(
        name="blat",
        said="six assays of beta-lactamase variants, tested on positions that were not trained on",
        files=(("zeroshot/BLAT_ECOLX_Ranganathan2015_labeled.csv.gz", ""),),
        columns=("mutant", "0", "39", "156", "625", "2500", "cefotaxime"),
        recipe="""
[data]
table = "{table}"
mutation = "mutant"
wild_type = "{wild_type}"
crop_tokens = 512
bins_per_step = 2

[[tasks]]
name = "ampicillin"
columns = ["0", "39", "156", "625", "2500"]
type = "regression"

[[tasks]]
name = "cefotaxime"
type = "regression"

[split]
by = "position"
""",
        adaptations={"frozen": FROZEN.format(passes=20)},
    ),
)
BETA_LACTAMASE = ("zeroshot/P62593_BLAT_variants.fasta.gz", "header 2", "beta-lactamase_P20P")
"""A file that holds the wild type of BLAT: the variant whose mutation changes nothing."""


def write_case(case: Case, data: Path, folder: Path, rows: int | None) -> dict[str, Path]:
    """Write the table of a case, and the recipe's other files.

    Args:
        case: which one.
        data: holds the files of `Case.files`.
        folder: where to write.
        rows: how many are taken, `SHARES` of them in each part; None takes all.

    Returns:
        ``table``, and ``wild_type`` where the recipe needs one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: list[list[str]] = []
    for place, part in case.files:
        table = read_table(f"{data}/{place}")
        cells = [table.column(name) for name in case.columns]
        for row, values in enumerate(zip(*cells, strict=True)):
            own = case.part(table, row) if case.part else part
            found.append([*("" if value is None else value for value in values), own])
    kept = range(len(found)) if rows is None else some([row[-1] for row in found], rows).tolist()
    places = {"table": folder / f"{case.name}.csv"}
    with places["table"].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*case.columns, "part"])
        writer.writerows(found[row] for row in kept)
    if "{wild_type}" in case.recipe:
        variants, column, name = BETA_LACTAMASE
        table = read_table(f"{data}/{variants}")
        row = table.column(column).index(name)
        places["wild_type"] = folder / "wild_type.fasta"
        places["wild_type"].write_text(f">beta-lactamase\n{table.column('sequence')[row]}\n", encoding="ascii")
    return places


def some(parts: Sequence[str], count: int) -> NDArray[np.int64]:
    """Numbers of `count` rows, rising: `SHARES` of each part, or of all rows where none has a part; drawn by hash."""
    order = np.argsort(keyed_random.hashes(keyed_random.key(_SEED), np.arange(len(parts))), kind="stable")
    named = np.array(parts)
    shares = SHARES if any(parts) else {"": 1.0}
    chosen = [order[named[order] == part][: round(count * share)] for part, share in shares.items()]
    return np.sort(np.concatenate(chosen))


def write_recipe(case: Case, run: str, folder: Path, places: Mapping[str, Path], model: str, stores: Path) -> Path:
    """Write the recipe of one run of a case.

    Args:
        case: which one.
        run: name in `Case.adaptations`.
        folder: where to write; the run's directory is below it.
        places: what `write_case` gave.
        model: a line of `[model]`, such as ``init = "runs/mine"``.
        stores: where stores are built and reused.
    """
    quoted = {name: str(place.resolve()) for name, place in places.items()}
    data = case.recipe.format(**quoted).replace("[data]\n", f'[data]\nstore_dir = "{stores.resolve()}"\n')
    name = f"{case.name}_{run}"
    text = f"""# {case.said}
[run]
directory = "{(folder / name).resolve()}"
evaluate_every = {case.evaluate_every}
log_every = 50
checkpoint_every = 1000000

[model]
{model}
{data}{case.adaptations[run]}"""
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path
