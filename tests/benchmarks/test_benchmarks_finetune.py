"""The benchmarks of fine-tuning: what they compare is comparable, and both programs run to their last line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.assays.__main__ import in_words, proposal
from benchmarks.assays.cases import CASES, some, write_case, write_recipe
from benchmarks.finetune.rows import batches, cut, drawn
from finetune.recipe import Recipe
from support.launching import run
from support.places import REAL
from zymogen.settings.toml_file import read

DATA = REAL.parent
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no real assays beside the project (shared/data)")


def test_batches_of_a_pass_hold_each_protein_once_and_grouped_ones_pad_less() -> None:
    proteins = drawn(96, 400)
    slots = {}
    for grouped in (False, True):
        made = batches(proteins, 8, seed=3, grouped=grouped)
        assert sorted(p.sequence for batch in made for p in batch) == sorted(p.sequence for p in proteins)
        assert made == batches(proteins, 8, seed=3, grouped=grouped)
        assert [len(batch) for batch in made] == [8] * 12
        slots[grouped] = sum(8 * max(map(len, batch)) for batch in made)
    tokens = sum(map(len, proteins))
    assert tokens <= slots[True] < 0.8 * slots[False]


def test_proteins_with_one_beginning_are_one() -> None:
    found = cut([("MKVLLA", "a"), ("MKVLAA", "b"), ("MKV", "c")], crop=6)
    assert [(protein.sequence, protein.label, len(protein)) for protein in found] == [("MKVL", "a", 6), ("MKV", "c", 5)]


def test_some_rows_are_taken_of_each_part() -> None:
    parts = ["train"] * 300 + ["test"] * 100 + ["validation"] * 50
    rows = some(parts, 100)
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert [int(np.sum((rows >= first) & (rows < end))) for first, end in ((0, 300), (300, 400), (400, 450))] == [
        *(50, 30, 20)
    ]
    assert len(some([""] * 300, 100)) == 100


@needs_data
@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("gb1", "blat")], ids=lambda case: case.name)
def test_recipes_can_be_read_and_name_columns_of_their_tables(case: object, tmp_path: Path) -> None:
    (found,) = (each for each in CASES if each is case)
    places = write_case(found, DATA, tmp_path, 60)
    header, *lines = places["table"].read_text().splitlines()
    assert len(lines) == 60
    for name in found.adaptations:
        path = write_recipe(found, name, tmp_path, places, 'preset = "esm2_60k"', tmp_path / "stores")
        recipe = read(Recipe, path)
        assert recipe.adaptation.kind == name
        for task in recipe.tasks:
            assert set(task.columns or (task.name,)) <= set(header.split(","))


def test_a_proposal_is_right_where_it_is_the_best_of_what_was_run() -> None:
    both = {"frozen": 0.25, "lora": 0.11}
    assert [proposal("gb1", kind, both)["right"] for kind in ("frozen", "lora")] == [True, False]
    assert proposal("ss3", "lora", {"frozen": 0.4})["right"] is None
    assert "proposes lora; mean skill in test: frozen 0.250, lora 0.110; the worse one" in in_words(
        proposal("gb1", "lora", both)
    )


@pytest.mark.prove
@pytest.mark.launch
def test_both_sides_begin_as_the_same_function_and_train_the_same_tokens() -> None:
    """The program compares first losses to 1e-4 and numbers of tokens, with and without adapters."""
    done = run([sys.executable, "-m", "benchmarks.finetune", "--quick"])
    assert done.status == 0, done.output
    lines = done.output.splitlines()
    assert [line.split(":")[0] for line in lines if "first loss" in line] == [
        *("800k-full-512", "800k-full-1022", "800k-lora-512")
    ]
    rows = json.loads(lines[-1])["rows"]
    assert len(rows) == 13
    assert all(row["holds"] is None for row in rows)


@pytest.mark.prove
@pytest.mark.launch
@needs_data
def test_four_tables_are_trained_and_tested_beside_every_baseline(tmp_path: Path) -> None:
    words = ["--rows", "200", "--folder", str(tmp_path), "--data", str(DATA)]
    done = run([sys.executable, "-m", "benchmarks.assays", *words])
    assert done.status == 0, done.output
    last = json.loads(done.output.splitlines()[-1])
    assert [each["table"] for each in last["proposals"]] == ["deeploc", "gb1", "ss3", "blat"]
    assert all(each["proposed"] == "frozen" for each in last["proposals"])  # 200 rows are few
    rows = last["rows"]
    tasks = {(row["work"], row["task"]): row for row in rows}
    assert len(tasks) == len(rows) == 11
    assert tasks["deeploc frozen", "membrane"]["undefined"] == "no label"
    for name, row in tasks.items():
        if name[1] == "membrane":
            continue
        wanted = {"mean or prevalence", "ridge on residues", "ridge on encoder"}
        wanted |= set() if name[1] == "structure" else {"nearest neighbour"}
        assert set(row["baselines"]) == wanted, name
        assert row["low"] <= row["model"] <= row["high"]
        assert row["beats_all"] == all(row["model"] > value for value in row["baselines"].values())
    residues = tasks["ss3 frozen", "structure"]
    assert residues["model"] > 0.5  # residues have thousands of labels, so that even a random encoder's vectors tell
