"""Fine-tuned models beside each other: paired intervals by clusters of relatives, and what is refused."""

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.compare.__main__ import main
from finetune.compare.paired import compare
from finetune.compare.predicted import ComparedPredictions, LabelPrediction, read
from finetune.metrics.scores import TaskScores
from finetune.results.results import Results
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from pretrain.compare.comparison import ModelDifference
from pretrain.evaluate.verdict import Judgement
from support.assays.bundled import rows

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the run
RESULTS = Results("test", TaskScores(()), None, (), (), (), (), (), "random", "5" * 32, None)
NUMBER = 60


def predicted(
    cells: Sequence[LabelPrediction], groups: Sequence[int], name: str = "a", **task: object
) -> ComparedPredictions:
    """A run with one task, whose i-th label is of protein i."""
    settings = TaskSettings(**{"name": "t", **task})
    classes = settings.classes
    counts = np.ones((1, len(classes)), np.int64)
    objective = Task(settings, ("t",), classes, np.zeros(1), np.ones(1), counts)
    labels = {(str(n), ""): cell for n, cell in enumerate(cells)}
    return ComparedPredictions(
        Path(name), RESULTS, (objective,), {"t": labels}, {str(n): str(g) for n, g in enumerate(groups)}
    )


def numbers(truth: np.ndarray, guess: np.ndarray, bounds: str = "") -> list[LabelPrediction]:
    return [
        LabelPrediction(f"{bounds if n % 3 == 0 else ''}{t}", str(p))
        for n, (t, p) in enumerate(zip(truth, guess, strict=True))
    ]


def only(first: ComparedPredictions, second: ComparedPredictions) -> ModelDifference:
    comparison = compare(first, second)
    (found,) = comparison.differences
    assert not comparison.notes
    assert comparison.judgement is found.judgement
    return found


@pytest.mark.parametrize("bounds", ["", "<"], ids=["exact", "bounds"])
def test_a_better_ranking_gains_beyond_its_interval(bounds: str) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(5, 1, NUMBER).round(3)
    good, bad = truth + rng.normal(0, 0.1, NUMBER), truth + rng.normal(0, 3, NUMBER)
    first, second = (
        predicted(numbers(truth, guess, bounds), range(NUMBER), name, type="regression")
        for name, guess in (("a", bad), ("b", good))
    )
    found = only(first, second)
    assert found.metric == ("concordance" if bounds else "Spearman")
    assert 0 < found.low < found.gain < found.high
    assert found.judgement is Judgement.BETTER
    swapped = only(second, first)
    assert swapped.judgement is Judgement.WORSE
    assert (swapped.gain, swapped.low, swapped.high) == pytest.approx((-found.gain, -found.high, -found.low))
    itself = only(first, first)
    assert (itself.gain, itself.low, itself.high) == (0, 0, 0)


def test_relatives_are_left_out_together() -> None:
    """Ten copies of each protein in one group say no more than one."""
    rng = np.random.default_rng(1)
    truth = rng.normal(5, 1, NUMBER).round(3)
    guesses = [truth + rng.normal(0, 2, NUMBER) for _ in range(2)]
    once = only(*(predicted(numbers(truth, guess), range(NUMBER), type="regression") for guess in guesses))
    groups = np.repeat(np.arange(NUMBER), 10).tolist()
    copies = [predicted(numbers(truth.repeat(10), guess.repeat(10)), groups, type="regression") for guess in guesses]
    of_copies = only(*copies)
    assert (of_copies.labels, of_copies.groups) == (10 * NUMBER, NUMBER)
    assert (of_copies.low, of_copies.high) == pytest.approx((once.low, once.high), abs=0.02)
    folds = replace(RESULTS, part="all folds")
    of_folds = only(*(replace(each, results=folds) for each in copies))
    assert of_folds.high - of_folds.low == pytest.approx(np.sqrt(2) * (of_copies.high - of_copies.low))
    alone = only(*(predicted(numbers(truth, guess), [0] * NUMBER, type="regression") for guess in guesses))
    assert np.isnan(alone.low)
    assert alone.judgement is Judgement.UNDECIDED


def test_classes_are_compared_by_the_ranking_metric_of_their_scores() -> None:
    rng = np.random.default_rng(3)
    words = rng.choice(["no", "yes"], NUMBER)
    sure = np.where(words == "yes", 0.9, 0.1)
    for kind, metric in (("binary", "AUROC"), ("multiclass", "macro AUROC"), ("ordinal", "Kendall")):
        ranks = [f"{1 - p} {p}" if kind == "multiclass" else f"{p}" for p in sure]
        good = [LabelPrediction(word, rank) for word, rank in zip(words, ranks, strict=True)]
        bad = [LabelPrediction(word, "0.5 0.5" if kind == "multiclass" else "0.5") for word in words]
        task = {"type": kind, "classes": ("no", "yes")}
        found = only(*(predicted(cells, range(NUMBER), **task) for cells in (bad, good)))
        assert found.metric == metric
        assert found.values == pytest.approx((0 if kind == "ordinal" else 0.5, 1))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda run: replace(run, results=replace(RESULTS, split_fingerprint="6" * 32)),
            "a and b have different splits",
        ),
        (lambda run: replace(run, results=replace(RESULTS, part="all folds")), "a was scored on test, b on all folds"),
        (
            lambda run: replace(run, tasks={"t": run.tasks["t"] | {("7", ""): LabelPrediction("9", "1")}}),
            r"different labels of task 't' for 1 of 60, such as '7'; compare runs on one table",
        ),
        (lambda run: replace(run, tasks={}), "share no task that is defined in both"),
    ],
    ids=["split", "part", "labels", "tasks"],
)
def test_what_cannot_be_compared_is_refused(
    change: Callable[[ComparedPredictions], ComparedPredictions], expected: str
) -> None:
    cells = numbers(np.arange(NUMBER), np.arange(NUMBER))
    first, second = (predicted(cells, range(NUMBER), name, type="regression") for name in "ab")
    with pytest.raises(ValueError, match=expected):
        compare(first, change(second))


def test_tasks_that_decide_give_the_judgement() -> None:
    """Better on one task and worse on another: worse, unless the first alone decides."""
    rng = np.random.default_rng(4)
    truth = rng.normal(5, 1, NUMBER).round(3)
    good, bad = numbers(truth, truth), numbers(truth, rng.normal(0, 3, NUMBER))
    runs = []
    for name, of_t, of_u in (("a", bad, good), ("b", good, bad)):
        run = predicted(of_t, range(NUMBER), name, type="regression")
        two = {"mean": np.zeros(2), "std": np.ones(2), "class_counts": np.ones((2, 0), np.int64)}
        objective = replace(run.objectives[0], outputs=("t", "u"), **two)
        labels = {(str(n), ""): cell for n, cell in enumerate(of_u)}
        runs.append(replace(run, objectives=(objective,), tasks={**run.tasks, "u": labels}))
    every, one = compare(*runs), compare(*runs, decide=["t"])
    assert (every.judgement, one.judgement) == (Judgement.WORSE, Judgement.BETTER)
    assert every.line().startswith("b is worse than a: gain in the metric (paired 95 % interval): u -")
    assert one.line().startswith("b is better than a: gain in the metric (paired 95 % interval): t +")


def test_two_runs_by_the_command(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run beside itself, and beside a copy whose every call is wrong."""
    run, other = folder / "run", tmp_path / "other"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("checkpoints", "stores"))
    out = tmp_path / "found.json"
    assert main([str(run), str(run / "bundle"), "-o", str(out)]) == 0
    content = json.loads(out.read_text())
    (ss,) = [each for each in content["differences"] if each["name"] == "ss"]
    assert (ss["gain"], ss["low"], ss["high"]) == (0, 0, 0)
    assert ss["metric"] == "macro AUROC"
    of_run = {task.task: task for task in read(run).results.scores.tasks}
    assert ss["values"][0] == pytest.approx(of_run["ss"].value, abs=1e-7)
    assert ss["labels"] == of_run["ss"].labels
    lines = rows(other / "predictions.csv")
    classes = {task: objective.classes for objective in read(run).objectives for task in objective.outputs}
    for line in lines:  # a model that is sure of every class but the true one
        if known := classes[line["task"]]:
            sure = [str(float(name != line["truth"])) for name in known]
            line["ranking"] = " ".join(sure) if len(line["ranking"].split()) > 1 else sure[1]
    with (other / "predictions.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    assert (main([str(run), str(other)]), main([str(other), str(run)])) == (1, 0)
    capfd.readouterr()
    (other / "predictions.csv").unlink()
    for arguments, expected in (
        ([run, run, "-o", out], "exists; give another name"),
        ([run, tmp_path], "lies in no finished fine-tuning run (scores.json is missing)"),
        ([run, f"{other}s"], f"(scores.json is missing); the nearest is '{other}': the labels"),
        ([run, other], "predictions.csv: No such file or directory; start the run again"),
        ([run, run, "--task", "nothing"], "--task 'nothing' is none of those that both define"),
    ):
        assert main([*map(str, arguments)]) == 78
        assert expected in capfd.readouterr().err
    (other / "split.csv").unlink()
    assert main([str(run), str(other)]) == 78
    assert f"{other} is one fold or seed of a run, without the split" in capfd.readouterr().err
