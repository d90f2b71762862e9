"""What is held out is predicted once, by a model that neither trained on it nor chose its checkpoint by it."""

import csv
import html
import json
import re
from pathlib import Path

import pytest

from finetune.__main__ import main
from finetune.assays import open_assays, prepare
from finetune.predict.__main__ import main as predict
from finetune.recipe import Recipe
from finetune.splits.parts import TRAIN
from support.assays.small_run import Rows, write
from zymogen.settings.toml_file import read

TASK = '[[tasks]]\nname = "affinity_b"\ntype = "regression"\n\n'

CHOSEN = (
    "The checkpoint is chosen on training rows, as no validation row has a label: overfitting goes unnoticed, and "
    "predictions have no calibration."
)


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", text).replace("\\", "").split())


def recipe_of(folder: Path, labelled: str, split: str, count: int = 48) -> Path:
    """A recipe of one task and one pass, of which only the rows of some letters of a, b, c, d have a label."""

    def change(rows: Rows) -> Rows:
        of_rows = ["abcd"[number % 4] for number in range(len(rows))]
        return [
            row | {"side": side, "affinity_b": f"{number % 7}" if side in labelled else ""}
            for number, (row, side) in enumerate(zip(rows, of_rows, strict=True))
        ]

    path = write(folder, change, count=count)
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


@pytest.mark.slow
def test_a_test_part_without_labels_is_scored_by_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = 'by = "column"\ncolumn = "side"\ntrain = ["a", "b", "c"]\ntest = ["d"]'
    recipe = recipe_of(tmp_path, "abc", split)
    assert main([str(recipe)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Nothing that is held out has a label: nothing is scored." in said
    assert CHOSEN in said
    assert "Undefined in validation: affinity_b: no label." in said


@pytest.mark.slow
@pytest.mark.usefixtures("last_report")
@pytest.mark.parametrize("words", ["", pytest.param('validation = ["c"]\n', marks=pytest.mark.slow)])
def test_what_chose_on_training_rows_says_so_everywhere(
    words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of train and test; and one whose validation rows have no label."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without MMseqs2
    is_there = bool(words)
    train, labelled = ('["a", "b"]', "abd") if is_there else ('["a", "b", "c"]', "abcd")
    split = f'by = "column"\ncolumn = "side"\ntrain = {train}\n{words}test = ["d"]'
    assert main([str(recipe_of(tmp_path, labelled, split))]) == 0
    said, run = "".join(capfd.readouterr()), tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scored = [line["training"] for line in lines if "training" in line]
    assert scored
    assert all("skill" in line["all_tasks"] for line in scored)
    assert not any("validation" in line for line in lines)
    records = 24 if is_there else 36
    start = f"no validation row has a label; the checkpoint is chosen on training rows, {records} of them are scored"
    assert f"validation: {start}" in said
    assert "training rows: skill" in said
    assert f"{CHOSEN}\n" in said
    bundle = json.loads((run / "bundle/bundle.json").read_text())
    assert (bundle["chosen_on"], bundle["validation"]) == ("training", {})
    scores = json.loads((run / "scores.json").read_text())
    assert scores["notes"] == bundle["evaluation"]["notes"] == [CHOSEN]
    assert scores["validation"] is None
    assert [member["chosen_on"] for member in scores["members"]] == ["training"]
    assert {each["calibration"]["why_not"] for each in scores["calibrations"]} == {"no validation row has a label"}
    ridges = [each["descriptions"]["affinity_b"] for each in scores["baselines"] if "ridge" in each["name"]]
    assert len(ridges) == 2
    assert all(each.endswith("penalty 10, the default, as no validation row has a label") for each in ridges)
    card = (run / "bundle/README.md").read_text()
    assert "| step, chosen on training rows |" in card
    assert CHOSEN in card
    report = (run / "report.html").read_text()
    assert CHOSEN in report
    assert "Skill on training rows, which choose the checkpoint" in report
    closing = said[said.index("scores of the test part") : said.index("All numbers:")].splitlines()
    after_table = [each for each in closing[closing.index("") + 1 :] if each]
    caveats = [each for each in after_table if not each.startswith(("The model", "A baseline"))]
    assert len(caveats) >= 2
    assert scores["caveats"] == bundle["evaluation"]["caveats"] == caveats
    assert [each for each in scores["said"] if each not in said] == []
    assert start in scores["said"][-2]
    assert [each for each in [*caveats, *scores["said"]] if plain(each) not in plain(html.unescape(report))] == []
    assert [each for each in caveats if plain(each) not in plain(card)] == []
    assert bundle["evaluation"]["said"] == []  # which may name files
    assert not any("Skill in validation" in text or "chosen on validation" in text for text in (card, report, said))
    assert predict([str(run / "bundle"), str(tmp_path / "assays.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    assert "no intervals or calibration of 1 tasks: no validation row has a label" in capfd.readouterr().err


def test_training_rows_that_choose_a_checkpoint_are_a_keyed_sample(tmp_path: Path) -> None:
    recipe = read(Recipe, write(tmp_path))
    assays = open_assays(recipe, prepare(recipe))
    training = assays.records(TRAIN)
    drawn = assays.drawn_of_training(0, 20)
    assert drawn.tolist() == sorted({*drawn.tolist()} & {*training.tolist()})
    assert len(drawn) == 20
    assert drawn[-1] > training[20]
    assert drawn.tolist() == assays.drawn_of_training(0, 20).tolist() != assays.drawn_of_training(1, 20).tolist()
    assert assays.drawn_of_training(0, len(training) + 1).tolist() == training.tolist()


@pytest.mark.slow
def test_the_labels_that_calibrate_are_not_those_that_chose_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without MMseqs2
    recipe = recipe_of(tmp_path, "abcd", 'by = "random"\nfractions = [0.3, 0.4, 0.3]', count=240)
    assert main([str(recipe)]) == 0
    (calibrated,) = json.loads((tmp_path / "run/scores.json").read_text())["calibrations"]
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    chose = {line["validation"]["affinity_b"]["labels"] for line in lines if "validation" in line}
    assert (chose, calibrated["calibration"]["labels"], calibrated["calibration"]["chose"]) == ({48.0}, 48, False)
