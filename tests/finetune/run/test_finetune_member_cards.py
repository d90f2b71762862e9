"""The bundle and the card of one of several models show the scores of that model alone."""

import csv
import json
from pathlib import Path

import pytest
from scipy import stats

from finetune.__main__ import main
from finetune.predict.__main__ import main as predict
from support.assays.small_run import write

TASK = '[[tasks]]\nname = "affinity_b"\ntype = "regression"\n\n'


def trained(folder: Path, split: str, seeds: int) -> Path:
    """A run of one pass of several models on 48 proteins, all of which have a label."""
    path = write(folder, lambda rows: [row | {"affinity_b": f"{n * 7 % 48}"} for n, row in enumerate(rows)], count=48)
    text = path.read_text()
    first, last = text.index("[[tasks]]"), text.index("[split]")
    text = text[:first] + TASK + text[last:].replace("fractions = [0.6, 0.2, 0.2]", split)
    path.write_text(text.replace("total_tokens = 12_000", "passes = 1").replace('table = "', 'id = "name"\ntable = "'))
    assert main([str(path), f"run.seeds={seeds}"]) == 0
    return folder / "run"


def spearman_alone(run: Path, member: str, fold: str | None, folder: Path) -> float:
    """What the model of one bundle is worth on the records that are tested, by its own predictions of the table."""
    out = folder / f"{member}.csv"
    assert predict([str(run / member / "bundle"), str(folder / "assays.csv"), "-o", str(out)]) == 0
    with (run / "split.csv").open() as file:
        of = {row["id"]: row["fold"] if fold else row["part"] for row in csv.DictReader(file)}
    with out.open() as file:
        rows = [row for row in csv.DictReader(file) if of[row["name"]] == (fold or "test")]
    pairs = [(float(row["affinity_b"]), float(row["affinity_b_predicted"])) for row in rows]
    assert len(pairs) >= 10
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def value_of(results: dict[str, object]) -> float:
    scores: dict[str, list[dict[str, float]]] = results["scores"]  # type: ignore[assignment]
    return scores["tasks"][0]["value"]


@pytest.mark.slow
def test_each_card_has_the_score_of_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without MMseqs2
    run = trained(tmp_path, "fractions = [0.5, 0.25, 0.25]", 2)
    together, values = json.loads((run / "scores.json").read_text()), []
    for member in ("seed-0", "seed-1"):
        bundle = json.loads((run / member / "bundle/bundle.json").read_text())
        own = bundle["evaluation"]
        assert [each["name"] for each in own["members"]] == [member]
        values.append(value_of(own))
        assert values[-1] == pytest.approx(spearman_alone(run, member, None, tmp_path), abs=1e-9)
        assert own["notes"] == [f"These are the scores of {member} alone, one of the 2 models of the run."]
        card = (run / member / "bundle/README.md").read_text()
        assert f"value: {values[-1]}" in card
        assert own["notes"][0] in card
        assert json.loads((run / member / "scores.json").read_text())["scores"] == own["scores"]
        assert own["baselines"][0]["scores"]["tasks"][0]["value"] is not None
        # The calibration of the mean stays: predictions of the whole run have its intervals.
        assert bundle["ensemble"] == {"members": together["members"], "calibrations": together["calibrations"]}
        assert own["calibrations"] != together["calibrations"]
    assert len({*values, value_of(together)}) == 3
    assert predict([str(run), str(tmp_path / "assays.csv"), "-o", str(tmp_path / "both.csv")]) == 0
    with (tmp_path / "both.csv").open() as file:
        row = next(csv.DictReader(file))
    width = together["calibrations"][0]["calibration"]["half_width"]
    ends = float(row["affinity_b_predicted_high"]) - float(row["affinity_b_predicted_low"])
    assert ends == pytest.approx(2 * width, rel=1e-5)
    assert main([str(tmp_path / "recipe.toml"), "run.seeds=2"]) == 0  # which computes nothing, and keeps them
    assert value_of(json.loads((run / "seed-1/bundle/bundle.json").read_text())["evaluation"]) == values[1]


@pytest.mark.slow
def test_the_card_of_a_fold_has_the_score_of_what_its_model_did_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = trained(tmp_path, "folds = 3", 1)
    for fold in "012":
        bundle = json.loads((run / f"fold-{fold}/bundle/bundle.json").read_text())
        own = bundle["evaluation"]
        assert own["part"] == f"fold {fold}"
        assert own["scores"]["tasks"][0]["labels"] == 16
        assert value_of(own) == pytest.approx(spearman_alone(run, f"fold-{fold}", fold, tmp_path), abs=1e-9)
        (of_all_folds,) = bundle["ensemble"]["calibrations"]  # of their out-of-fold errors
        assert of_all_folds["calibration"]["labels"] == 3 * 16
        card = (run / f"fold-{fold}/bundle/README.md").read_text()
        assert f"Scores of fold {fold}" in card
        assert "out-of-fold" not in card
