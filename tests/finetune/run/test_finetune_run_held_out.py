"""What is held out is predicted once, by a model that neither trained on it nor chose its checkpoint by it."""

import csv
import json
from pathlib import Path

import pytest

from finetune.__main__ import main
from support.assays.small_run import Rows, write

TASK = '[[tasks]]\nname = "affinity_b"\ntype = "regression"\n\n'


def recipe_of(folder: Path, labelled: str, split: str) -> Path:
    """A recipe of one task and one pass, of which only the rows of some letters of a, b, c, d have a label."""

    def change(rows: Rows) -> Rows:
        of_rows = ["abcd"[number % 4] for number in range(len(rows))]
        return [
            row | {"side": side, "affinity_b": f"{number % 7}" if side in labelled else ""}
            for number, (row, side) in enumerate(zip(rows, of_rows, strict=True))
        ]

    path = write(folder, change, count=48)
    text = path.read_text()
    first, last = text.index("[[tasks]]"), text.index("[split]")
    text = text[:first] + TASK + text[last:].replace('by = "random"\nfractions = [0.6, 0.2, 0.2]', split)
    path.write_text(text.replace("total_tokens = 12_000", "passes = 1"))
    return path


@pytest.mark.slow
def test_a_fold_without_labels_tests_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without MMseqs2: relatives are counted by words, which takes no second
    lines = [f"p{number},{'abcd'[number % 4]},{number % 4}" for number in range(48)]
    (tmp_path / "split.csv").write_text("\n".join(["id,part_of,fold", *lines]))
    recipe = recipe_of(tmp_path, "bcd", f'by = "file"\nfile = "{tmp_path}/split.csv"')
    recipe.write_text(recipe.read_text().replace('table = "', 'id = "name"\ntable = "'))
    assert main([str(recipe)]) == 0
    with (tmp_path / "run/predictions.csv").open() as file:
        predicted = [row["id"] for row in csv.DictReader(file)]
    assert sorted(predicted) == sorted(f"p{number}" for number in range(48) if number % 4)
    scores = json.loads((tmp_path / "run/scores.json").read_text())
    assert [task["labels"] for task in scores["scores"]["tasks"]] == [36]


def test_a_test_part_without_labels_is_scored_by_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = 'by = "column"\ncolumn = "side"\ntrain = ["a", "b", "c"]\ntest = ["d"]'
    recipe = recipe_of(tmp_path, "abc", split)
    assert main([str(recipe)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Nothing that is held out has a label: nothing is scored. Training records chose the checkpoint." in said
    assert "Undefined in validation: affinity_b: no label." in said
