"""Rows that the split leaves out give no label."""

from pathlib import Path

import numpy as np
import pytest

from data.alphabet import decode
from finetune.assays import Assays, open_assays, prepare
from finetune.recipe import Recipe
from finetune.splits.parts import TEST, TRAIN
from support.assays.small_run import rows as small_rows
from zymogen.settings.toml_file import read

RECIPE = """
[model]
preset = "esm2_60k"
[data]
table = "{folder}/assays.csv"
store_dir = "{folder}/stores"
[run]
directory = "{folder}/run"
[[tasks]]
name = "y"
type = "regression"
[split]
{split}
"""
LETTERS = [row["sequence"] for row in small_rows(40)]
WIDE = 1000.0


def opened(folder: Path, cells: list[tuple[str, str, float]], split: str) -> Assays:
    """The assays of rows of (sequence, cell of the split's column, label)."""
    lines = [f"{letters},{cell},{label}" for letters, cell, label in cells]
    (folder / "assays.csv").write_text("\n".join(["sequence,s,y", *lines]) + "\n")
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder, split=split))
    recipe = read(Recipe, folder / "recipe.toml", ())
    return open_assays(recipe, prepare(recipe))


@pytest.mark.parametrize(
    ("split", "train", "test", "others"),
    [
        ('by = "column"\ncolumn = "s"', "train", "test", ["", "unused"]),
        ('by = "column"\ncolumn = "s"\nconflict = "held_out"', "train", "test", ["", "train"]),
        ('by = "time"\ncolumn = "s"\ncuts = ["2020"]', "2019", "2021", ["", "2018"]),
        ('by = "scaffold"\ncolumn = "s"\nfractions = [0.5, 0.0, 0.5]', "c1ccccc1", "C1CCNCC1", ["", "no molecule"]),
    ],
)
def test_a_row_outside_of_its_proteins_part_gives_no_label(
    tmp_path: Path, split: str, train: str, test: str, others: list[str]
) -> None:
    """Protein i has the label i, and two of them have one more row that is in no part, or in another."""
    if "scaffold" in split:
        pytest.importorskip("rdkit")
    cells = [(letters, train if i < 30 else test, float(i)) for i, letters in enumerate(LETTERS)]
    # The second one is in training where its protein is tested.
    cells += [(LETTERS[0], others[0], WIDE), (LETTERS[35], others[1], WIDE)]
    found = opened(tmp_path, cells, split)
    labels = found.tasks[0].labels
    sequences = [decode(np.asarray(found.store.residues(record))) for record in range(found.store.num_records)]
    by_letters = dict(zip(sequences, labels.values.tolist(), strict=True))
    assert by_letters == {letters: float(i) for i, letters in enumerate(LETTERS)}
    assert labels.replicates is None
    if "scaffold" not in split:
        of = dict(zip(sequences, found.parts.part.tolist(), strict=True))
        assert [of[letters] for letters in LETTERS] == [TRAIN] * 30 + [TEST] * 10
