"""The page of a fine-tuning run: its tables, its pictures, and that a browser can show them on a phone."""

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.metrics.predictions import LabelPredictions, LabelRows
from finetune.metrics.scores import TaskScores
from finetune.metrics.scoring import score
from finetune.report import page
from finetune.report.pictures import MOST_TASKS, pictures
from finetune.results.calibration import check_calibration, fit_calibration, interval_ends
from finetune.results.merge import MergedPredictions, with_calibration
from finetune.results.results import BaselineScores, EnsembleMemberFacts, ReplicateCeiling, Results, TaskCalibration
from finetune.results.text import caveats
from finetune.splits.audit import Overlap, SplitAudit
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from support.inputs.written_runs import WrittenRun
from support.screens.browser import Browser, offences
from zymogen.keyed_random import hashes, key

COUNT = 120


def uniform(number: int, *shape: int) -> Any:
    """Numbers in [0, 1), keyed."""
    return (hashes(key(number), np.arange(int(np.prod(shape)))) / 2.0**64).reshape(shape)


def of_kind(kind: str, name: str, outputs: int = 1) -> tuple[Task, LabelPredictions]:
    """An objective, and predictions that know something."""
    classes = {"binary": ("no", "yes"), "multiclass": tuple("abcde")}.get(kind, ())
    names = (name,) if outputs == 1 else tuple(f"{name}{n}" for n in range(outputs))
    settings = TaskSettings(name=name, type=kind)  # type: ignore[arg-type]
    trained = np.full((outputs, len(classes)), 9)
    labels = np.full(outputs, 9)
    objective = Task(settings, names, classes, np.zeros(outputs), np.ones(outputs), trained, "", labels)
    of = np.repeat(np.arange(outputs), COUNT)
    truth = uniform(1, outputs * COUNT)
    guess = 0.6 * truth + 0.4 * uniform(2, outputs * COUNT)
    if kind == "binary":
        truth = (truth > 0.6).astype(np.float64)
    elif kind == "multiclass":
        truth = np.floor(5 * truth)
        near = np.exp(-((5 * guess[:, None] - 0.5 - np.arange(5)) ** 2))
        guess = near / near.sum(1, keepdims=True)
    return objective, LabelPredictions(LabelRows(np.tile(np.arange(COUNT), outputs), of, truth), guess)


def results_of(*kinds: tuple[Task, LabelPredictions]) -> tuple[Results, list[Task], list[MergedPredictions]]:
    objectives, joined, calibrations = [], [], []
    for objective, predictions in kinds:
        maps = fit_calibration(objective, predictions)
        found = with_calibration(objective, predictions, None, maps)
        numbers = check_calibration(
            objective, predictions, found.calibrated, *interval_ends(objective, maps, predictions)
        )
        calibrations += [
            TaskCalibration(objective.settings.name, *each)
            for each in zip(objective.outputs, maps, numbers, strict=True)
        ]
        objectives.append(objective)
        joined.append(found)
    scores = TaskScores.joined(score(o, j.predictions) for o, j in zip(objectives, joined, strict=True))
    known = Overlap("train", COUNT, 900, 3, (0.3, 0.5), (40, 12), COUNT)
    audit = SplitAudit("f", "MMseqs2 14", False, (known,), None)
    better = TaskScores(scores.tasks[:1])
    results = Results(
        *("test", scores, None),
        baselines=(
            BaselineScores("ridge on residues", better, {}, {}, 2.0),
            BaselineScores(
                "nearest neighbour", TaskScores(()), {}, {o.settings.name: "too slow" for o in objectives}, 0.0
            ),
        ),
        members=(EnsembleMemberFacts("", 0, None, 20, "validation"),),
        seeds=(),
        ceilings=(ReplicateCeiling(objectives[0].settings.name, objectives[0].outputs[0], 12, 0.5, 0.81),),
        calibrations=tuple(calibrations),
        split="a random split, the optimistic one",
        split_fingerprint="f",
        audit=audit,
    )
    return results, objectives, joined


def test_pictures_follow_the_type_and_end_after_the_first_tasks() -> None:
    binary, numbers, several = of_kind("binary", "active"), of_kind("regression", "k", 9), of_kind("multiclass", "m")
    results, objectives, joined = results_of(binary, numbers, several)
    of = [pictures(o, j, results.scores, 0) for o, j in zip(objectives, joined, strict=True)]
    assert [square.title for square in of[0][0]] == [
        *("active: ROC", "active: precision and recall", "active: enrichment", "active: calibration")
    ]
    assert len(of[1]) == MOST_TASKS
    assert [[square.name for square in task] for task in pictures(objectives[2], joined[2], results.scores, 4)] == [
        ["task-4-roc", "task-4-calibration"]
    ]
    (roc, pr, enrichment, _), truth = of[0][0], binary[1].rows.truth
    (curve,) = roc.lines
    area = float(np.trapezoid(curve.y, curve.x))
    assert area == pytest.approx(results.scores.tasks[0].value)
    assert pr.lines[1].y.tolist() == [truth.mean()] * 2
    found = enrichment.lines[0]
    first = np.argsort(-binary[1].prediction)[:12]
    assert float(np.interp(0.1, found.x, found.y)) == pytest.approx(truth[first].sum() / truth.sum())


def test_one_range_for_both_axes_shows_that_predictions_hardly_vary() -> None:
    objective, predictions = of_kind("regression", "k")
    flat = LabelPredictions(predictions.rows, 0.5 + predictions.prediction / 1e6)
    results, objectives, joined = results_of((objective, flat))
    (((square,),)) = pictures(objectives[0], joined[0], results.scores, 0)
    assert square.ranges is not None
    both, (low, high) = square.ranges
    assert both == (low, high)
    assert low < 0.1
    assert high > 0.9


def test_the_page_says_what_the_model_is_worth(tmp_path: Path) -> None:
    root = WrittenRun(steps=40).write(tmp_path / "run")
    undefined, few = of_kind("regression", "scarce"), slice(0, 3)
    rows = undefined[1].rows
    scarce = LabelPredictions(
        LabelRows(rows.records[few], rows.outputs[few], rows.truth[few]), undefined[1].prediction[few]
    )
    results, objectives, joined = results_of(of_kind("binary", "<active>"), (undefined[0], scarce))
    results = replace(results, caveats=tuple(caveats(results)))
    assert page.write(root, root, results, objectives, joined) == str(root / "report.html")
    text = (root / "report.html").read_text()
    words = re.sub(r"\s+", " ", re.sub(r"<(?!active)[^>]*>", " ", text))
    assert any("too slow" in each for each in results.caveats)
    assert any(each.startswith("Undefined in test: scarce") for each in results.caveats)
    assert [each for each in results.caveats if each not in html.unescape(words)] == []
    for expected in (
        "A baseline is as good or better in the only task: &lt;active&gt; (ridge on residues",
        "scarce 3 labels, fewer than 10",
        "nearest neighbour too slow",
        "perfect predictions would reach a Pearson correlation of 0.810, by 12 labels of several measurements",
        "train identity of at least 30% 40 of 120 (33.3%)",
        "Drawn",
        "by python -m finetune",
    ):
        assert expected in words, expected
    assert "Loss and perplexity" not in text
    assert "<active>" not in text


def test_a_page_that_cannot_be_drawn_costs_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, objectives, joined = results_of(of_kind("binary", "a"))
    (tmp_path / "report.html").write_text("mine")
    root = WrittenRun(steps=4).write(tmp_path / "run")
    assert not page.write(tmp_path, root, results, objectives, joined)
    assert capsys.readouterr().err.startswith("the report was not drawn: ValueError: ")
    assert (tmp_path / "report.html").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_readable_in_a_browser(tmp_path: Path, browser: Browser, width: int) -> None:
    root = WrittenRun(steps=40).write(tmp_path / "run")
    long = of_kind("binary", "a_task_with_a_name_that_is_longer_than_a_column_of_a_phone_is_wide")
    results, objectives, joined = results_of(long, of_kind("regression", "k", 3), of_kind("multiclass", "m"))
    page.write(root, root, results, objectives, joined)
    browser.open(root / "report.html", width, mobile=width < 500)
    assert offences(browser.look()) == []
