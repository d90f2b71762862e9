"""The split that a look proposes for tables of a thousand rows and more, and what one odd row may decide."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.homology import mmseqs
from finetune.look.__main__ import main as look
from finetune.recipe import Recipe
from finetune.splits.settings import SplitSettings
from support.assays.messy_tables import lines, numbers, proteins, saved
from zymogen.settings.toml_file import read

LETTERS = "ACDEFGHIKLMNPQRSTVWY"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)


def proposed(folder: Path, header: str, *columns: list[Any]) -> SplitSettings:
    assert look([*saved(folder, lines(header, *columns)), "-o", "r.toml"]) == 0
    return read(Recipe, Path("r.toml")).split


def family(parent: str, count: int) -> list[str]:
    """Relatives of several lengths, which are no variants of one length."""
    draw = np.random.default_rng(len(parent))
    ends = ["".join(draw.choice(list(LETTERS), 4 + number % 7)) for number in range(count)]
    return [parent + end for end in ends]


def test_one_deletion_among_substitutions_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (parent,) = proteins(1, 4, 70, 71)
    sequences = [parent[:i] + new + parent[i + 1 :] for i in range(70) for new in LETTERS[:16] if new != parent[i]]
    split = proposed(tmp_path, "sequence,y", [*sequences, parent[:9] + parent[10:]], numbers(len(sequences) + 1))
    assert (split.by, split.folds) == ("position", 0)
    assert "variants of one protein" in capsys.readouterr().out


def test_dates_of_years_split_what_relatives_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (parent,) = proteins(1, 4, 50, 51)
    dates = [f"{2010 + number % 11}-0{1 + number % 9}-03" for number in range(1050)]
    split = proposed(tmp_path, "sequence,measured,y", family(parent, 1050), dates, numbers(1050))
    assert (split.by, split.column, split.folds) == ("time", "measured", 0)
    said = " ".join(capsys.readouterr().out.split())
    assert "split dates of 2010 to 2020: what was measured earlier trains, later is tested" in said


def test_a_few_clusters_are_all_tested_in_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sequences = [each for parent in proteins(20, 4, 50, 51) for each in family(parent, 51)]
    split = proposed(tmp_path, "sequence,y", sequences, numbers(1020))
    assert (split.by, split.folds) == ("homology", 5)
    said = " ".join(capsys.readouterr().out.split())
    assert "so few clusters do not fill a test part: in 5 folds each is tested once" in said


def test_a_rare_task_that_was_asked_for_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = saved(tmp_path, lines("sequence,state,y", proteins(60), ["A"] * 59 + ["X"], numbers(60)))
    assert look([*table, "-o", "r.toml", "--task", "state", "--task", "y"]) == 0
    assert [task.name for task in read(Recipe, Path("r.toml")).tasks] == ["state", "y"]
    assert "left out" not in capsys.readouterr().out
