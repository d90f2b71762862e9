"""Every table of tests/finetune/tables.toml: the roles, tasks, split and words that a look must give, and the labels
that a run reads by its recipe.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.homology import mmseqs
from finetune.assays import Assays, open_assays, prepare
from finetune.look import __main__ as command
from finetune.look.column_profile import columns_of
from finetune.look.draft import RecipeDraft
from finetune.look.draft_data import read_proteins
from finetune.look.protein_columns import infer_protein_columns
from finetune.look.roles import infer_roles
from finetune.recipe import Recipe
from finetune.splits.text import format_split as said_of_split
from finetune.tables.read import read_table
from finetune.tables.table import Table
from support.assays.table_cases import CASES, write_case
from zymogen.settings.toml_file import read

NAMES = [case["name"] for case in CASES]
ACCEPTED = [case for case in CASES if "error" not in case]


def in_words(text: str) -> str:
    return " ".join(text.split())


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_case_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if number % 3 else [])
        for number, (case, name) in enumerate(zip(CASES, NAMES, strict=True))
    ],
)
def test_table_is_understood(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    proposals: list[RecipeDraft] = []
    propose = command.draft_recipe
    monkeypatch.setattr(command, "draft_recipe", lambda *given: proposals.append(propose(*given)) or proposals[0])
    write_case(case, tmp_path)
    status = command.main([case["file"], *case.get("options", ()), "-o", "r.toml"])
    screen = capsys.readouterr()
    if "error" in case:
        assert (status, proposals) == (78, [])
        assert case["error"] in in_words(screen.err)
        assert not [text for text in case.get("not_says", ()) if text in in_words(screen.err)]
        return
    assert status == 0, screen.err
    roles = {column: role for column, (role, _) in proposals[0].roles.items()}
    expected_roles = case.get("roles", {})
    assert {column: roles[column] for column in expected_roles} == expected_roles
    recipe = read(Recipe, tmp_path / "r.toml")
    assays = open_assays(recipe, prepare(recipe))
    check_tasks(case, recipe, assays)
    # The run says before its first step what the look said.
    audited = assays.audited(recipe.split, None)
    assert audited is None or in_words(said_of_split(recipe.split, assays.division, audited)) in in_words(screen.out)
    for section in ("split", "data"):
        settings = getattr(recipe, section)
        found = {name: plain(getattr(settings, name)) for name in case.get(section, {})}
        assert found == case.get(section, {})
    shown = in_words(screen.out)
    assert [text for text in case.get("says", ()) if text not in shown] == []
    assert [text for text in case.get("not_says", ()) if text in shown] == []


def check_tasks(case: dict[str, Any], recipe: Recipe, assays: Assays) -> None:
    """The tasks of the recipe, and the number of labels that a run reads."""
    expected = case.get("tasks")
    if expected is None:
        return
    assert sorted(task.name for task in recipe.tasks) == sorted(expected)
    for task, read_task in zip(recipe.tasks, assays.tasks, strict=True):
        found = {"labels": len(read_task.labels.values)}
        found |= {name: plain(getattr(task, name)) for name in expected[task.name] if name != "labels"}
        assert {name: found[name] for name in expected[task.name]} == expected[task.name]


def roles_in_order(table: Table, order: list[str], case: dict[str, Any], folder: Path) -> dict[str, tuple[str, str]]:
    columns = columns_of(replace(table, cells=table.cells.select(order)))
    options = case.get("options", [])
    wild_type = options[options.index("--wild-type") + 1] if "--wild-type" in options else None
    named = [options[at + 1] for at, option in enumerate(options) if option == "--task"]
    place = infer_protein_columns(table, columns, wild_type, [])
    if place.wild_type is not None:
        place.settings["wild_type"] = str(folder / "of_table.fasta")
        (folder / "of_table.fasta").write_text(f">{place.wild_type[0]}\n{place.wild_type[1]}\n")
    data = {name: value for name, value in place.settings.items() if value is not None}
    proteins = read_proteins(table, data, {})
    residues, records, sites = proteins.whole_residues, proteins.record_of_row, proteins.sites
    return infer_roles(columns, place.roles, residues, named, records, sites).of


@pytest.mark.slow
@pytest.mark.parametrize("case", ACCEPTED, ids=[case["name"] for case in ACCEPTED])
def test_roles_do_not_depend_on_the_order_of_columns(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = read_table(str(write_case(case, tmp_path)))
    roles = [
        {name: role for name, (role, _) in roles_in_order(table, order, case, tmp_path).items()}
        for order in (table.columns, table.columns[::-1], list(np.random.default_rng(0).permutation(table.columns)))
    ]
    assert roles[0] == roles[1] == roles[2]
