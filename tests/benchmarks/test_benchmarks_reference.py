"""The recipes of the reference runs name settings that exist, and a record that differs is seen."""

from pathlib import Path

import pytest

import finetune.recipe
import pretrain.recipe
from benchmarks.reference.__main__ import differences
from benchmarks.reference.runs import RUNS, write_table
from support.places import ROOT
from zymogen.settings.toml_file import read

RECIPES = {"pretrain": pretrain.recipe.Recipe, "finetune": finetune.recipe.Recipe}


@pytest.mark.parametrize("name", RUNS)
def test_recipe_reads(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    words = [f"run.directory={tmp_path}", *run.overrides]
    if run.program == "finetune":
        words.append(f"data.table={write_table(tmp_path / 'assay.csv')}")
    assert read(RECIPES[run.program], run.recipe, words).run.seed == 7
    assert (ROOT / "accelerate_configs" / f"{run.engine}.yaml").exists()


def test_differences_are_named_and_other_names_of_numbers_are_none() -> None:
    before = {"chain": "a", "files": {"x.csv": "1"}, "metrics": {"0.loss": 2.0, "1.loss": 3.0}}
    renamed = {**before, "metrics": {"0.training_loss": 2.0, "1.training_loss": 3.0}}
    assert list(differences(before, renamed)) == []
    changed = {"chain": "b", "files": {"y.csv": "1"}, "metrics": {"0.loss": 2.0, "1.loss": 3.5}}
    assert list(differences(before, changed)) == [
        "chain: a, now b",
        "files x.csv: 1, now None",
        "files y.csv: None, now 1",
        "metrics 1.loss: 3.0, now 3.5",
    ]
