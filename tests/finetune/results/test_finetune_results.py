"""The end of a run: seeds and folds joined, calibration and its check, the files, and the words."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.baselines.baseline import PartRecords, TaskBaseline
from finetune.finalize import _calibrations
from finetune.fold_predictions import FoldPredictions
from finetune.labels.labels import ABOVE, BELOW, EXACT, Labels
from finetune.metrics.predictions import LabelPredictions, LabelRows
from finetune.metrics.scores import TaskScore, TaskScores
from finetune.metrics.scoring import score
from finetune.results import baselines as of_beside
from finetune.results import merge as merging
from finetune.results import predictions_file, report_sections, text
from finetune.results.baselines import CONSTANT, FROZEN, NEAREST, RESIDUES, fit_baselines
from finetune.results.calibration import Calibration, calibrated, check_calibration, fit_calibration, interval_ends
from finetune.results.merge import MergedPredictions, average_seeds, merge_folds, objective_of_folds
from finetune.results.results import (
    BaselineScores,
    EnsembleMemberFacts,
    ReplicateCeiling,
    Results,
    SeedScores,
    TaskCalibration,
)
from finetune.splits.audit import PRETRAINING, Overlap, SplitAudit
from finetune.splits.parts import TEST, VALIDATION
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task

NO_VECTORS = "more than adaptation.cache_gb"


def objective(kind: str = "regression", outputs: int = 1, classes: int = 0, **settings: object) -> Task:
    counts = np.full((outputs, classes), 5, np.int64)
    of = TaskSettings(name="t", type=kind, **settings)  # type: ignore[arg-type]
    names = tuple(f"t{number}" for number in range(outputs))
    unit = str(settings.get("unit", ""))
    trained = np.full(outputs, 5)
    return Task(of, names, tuple("abcdef"[:classes]), np.zeros(outputs), np.ones(outputs), counts, unit, trained)


def rows(records: list[int], truth: list[float], outputs: list[int] | None = None) -> LabelRows:
    return LabelRows(np.array(records), np.array(outputs or [0] * len(records)), np.array(truth, np.float64))


def test_seeds_are_averaged_with_the_spread_of_the_class_that_is_called() -> None:
    of, three = objective("multiclass", classes=3), rows([0], [1.0])
    each = [LabelPredictions(three, np.array([p])) for p in ([0.2, 0.5, 0.3], [0.2, 0.7, 0.1], [0.5, 0.3, 0.2])]
    mean, spread = average_seeds(of, each)
    np.testing.assert_allclose(mean.prediction, [[0.3, 0.5, 0.2]])
    assert spread is not None
    np.testing.assert_allclose(spread, [0.2])  # of 0.5, 0.7, 0.3
    assert average_seeds(of, each[:1]) == (each[0], None)


def test_folds_are_joined_in_the_order_of_records_places_and_outputs() -> None:
    place = np.array([[4], [2], [2]])
    one = LabelRows(np.array([5, 5, 5]), np.array([0, 1, 0]), np.array([1.0, 2.0, 3.0]), None, place[:, 0])
    two = LabelRows(np.array([3]), np.array([0]), np.array([4.0]), np.array([BELOW], np.int8), np.array([9]))
    each = [LabelPredictions(one, np.array([10.0, 20.0, 30.0])), LabelPredictions(two, np.array([40.0]))]
    found = merging.joined_predictions(each, [objective(outputs=2)] * 2)
    assert found.rows.records.tolist() == [3, 5, 5, 5]
    assert found.rows.truth.tolist() == [4.0, 3.0, 2.0, 1.0]
    assert found.prediction.tolist() == [40.0, 30.0, 20.0, 10.0]
    assert found.rows.censoring is not None
    assert found.rows.censoring.tolist() == [BELOW, EXACT, EXACT, EXACT]
    assert found.rows.positions is not None
    assert found.rows.positions.tolist() == [9, 2, 2, 4]


def test_a_fold_is_calibrated_by_the_out_of_fold_errors_of_the_others() -> None:
    """Errors of 1, 10 and 100 in three folds of 20: the half width of each is the 90 % rank of the other two."""

    def fold(number: int) -> MergedPredictions:
        records = list(range(number, 60, 3))
        predictions = LabelPredictions(rows(records, [10.0**number] * 20), np.zeros(20))
        own = interval_ends(objective(), (Calibration(20, half_width=0.5),), predictions)
        return MergedPredictions(predictions, predictions.prediction, *own, np.full(20, number / 10))

    found = merge_folds([fold(number) for number in range(3)], [objective()] * 3)
    assert found.predictions.rows.records.tolist() == list(range(60))
    assert found.high[:3].tolist() == [100.0, 100.0, 10.0]
    assert found.low[:3].tolist() == [-100.0, -100.0, -10.0]
    assert found.spread is not None
    assert found.spread[:3].tolist() == [0.0, 0.1, 0.2]


@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass", "ordinal"])
def test_the_mean_of_each_fold_ranks_at_chance_and_one_model_everywhere_as_it_does(kind: str) -> None:
    """The training labels of a fold are a little lower where its tested ones are higher: pooled, 0.3 below chance."""
    rng = np.random.default_rng(7)
    classes = {"regression": 0, "binary": 2}.get(kind, 3)
    truth = rng.integers(0, classes, 60).astype(float) if classes else rng.normal(size=60)
    number = np.arange(60) // 20
    constants, models, objectives = [], [], []
    for fold in range(3):
        tested = rows(np.flatnonzero(number == fold).tolist(), truth[number == fold].tolist())
        training = truth[number != fold]
        of = objective(kind, classes=classes)
        shares = np.bincount(training.astype(int), minlength=classes) if classes else np.zeros(0)
        of = replace(of, mean=np.array([training.mean()]), class_counts=shares[None].astype(np.int64))
        probabilities = np.tile(shares / 40, (20, 1))
        constant = np.full(20, training.mean()) if classes in (0, 2) else probabilities
        constants.append(LabelPredictions(tested, constant))
        wave = 0.01 * np.sin(np.arange(constant.size)).reshape(constant.shape)
        models.append(LabelPredictions(tested, constant + wave))
        objectives.append(of)
    whole = objective_of_folds(objectives)
    (task,) = score(whole, merging.joined_predictions(constants, objectives)).tasks
    assert task.skill == 0
    pooled = replace(merging.joined_predictions(constants, objectives), relative=None)
    assert score(whole, pooled).tasks[0].skill < -0.05
    joined = merging.joined_predictions(models, objectives)
    for fold in range(3):  # within a fold nothing changes its place
        mine = joined.rows.records // 20 == fold
        of = models[fold].ranking(whole)
        assert (np.argsort(joined.ranking(whole)[mine], axis=0) == np.argsort(of, axis=0)).all()


def test_out_of_fold_scores_have_intervals_of_twice_the_variance() -> None:
    rng = np.random.default_rng(8)
    truth = rng.normal(size=100)
    alone = LabelPredictions(rows(list(range(100)), truth.tolist()), 0.1 * truth + rng.normal(size=100))
    of, folds = objective(), replace(alone, relative=alone.prediction)
    (one,), (several,) = score(of, alone).tasks, score(of, folds).tasks
    assert one.value == several.value
    ends = np.array([[one.low, one.high], [several.low, several.high]], np.float64)
    assert np.divide(*np.diff(ends)[::-1]) == pytest.approx(np.sqrt(2), rel=0.03)


def test_a_class_that_one_fold_lacks_is_not_trained_in_all_folds_together() -> None:
    one, two = objective("multiclass", classes=3), objective("multiclass", classes=3)
    two.class_counts[0, 2] = 0
    assert objective_of_folds([one, two]).is_trained.tolist() == [[True, True, False]]
    assert one.is_trained.all()


def test_half_widths_of_numbers_and_their_coverage_by_hand() -> None:
    of, nineteen = objective(), list(range(19))
    validation = LabelPredictions(rows(nineteen, [float(n) for n in nineteen]), np.zeros(19))
    (found,) = fit_calibration(of, validation)
    assert found == Calibration(19, half_width=17.0)  # rank ceil(20 * 0.9) = 18 of the errors 0, 1, ..., 18
    tested = LabelPredictions(rows([0, 1, 2, 3], [16.0, -17.0, 18.0, 30.0]), np.zeros(4))
    low, high = interval_ends(of, [found], tested)
    assert check_calibration(of, tested, tested.prediction, low, high) == [{"coverage": 0.5, "width": 34.0}]
    (few,) = fit_calibration(of, LabelPredictions(rows([0], [1.0]), np.zeros(1)))
    assert few.half_width is None
    assert few.why_not == "too few validation labels to promise 90%: 1"


def test_a_calibration_is_not_judged_by_the_labels_it_was_fitted_on() -> None:
    of, nineteen = objective(), list(range(19))
    predicted = LabelPredictions(rows(nineteen, [float(n) for n in nineteen]), np.zeros(19))
    maps = fit_calibration(of, predicted)
    joined = MergedPredictions(predicted, predicted.prediction, *interval_ends(of, maps, predicted), None)
    for part, judged in ((TEST, {"coverage": 18 / 19, "width": 34.0}), (VALIDATION, {})):
        fold = FoldPredictions(None, (of,), part, (), (joined,), (joined,), (maps,), ())  # type: ignore[arg-type]
        (found,) = _calibrations([fold], [of], [joined])
        assert (found.calibration.half_width, found.on_part) == (17.0, judged)


def test_labels_that_did_not_choose_the_checkpoint_calibrate_where_there_are_twenty() -> None:
    records = list(range(60))
    errors = np.where(np.arange(60) < 30, 1.0, 2.0)  # those of the half that chose are smaller
    validation = LabelPredictions(rows(records, errors.tolist()), np.zeros(60))
    for apart, width, labels, chose in ((30, 2.0, 30, False), (41, 2.0, 60, True), (60, 2.0, 60, True)):
        (found,) = fit_calibration(objective(), validation, np.arange(60) >= apart)
        assert found == Calibration(labels, half_width=width, chose=chose)
    reversed_errors = LabelPredictions(rows(records, errors[::-1].tolist()), np.zeros(60))
    (found,) = fit_calibration(objective(), reversed_errors, np.arange(60) >= 30)
    assert (found.half_width, found.chose) == (1.0, False)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_a_calibration_that_harms_on_labels_apart_is_not_used(kind: str) -> None:
    """Even rows are all as likely as said, odd ones never: either half makes the probabilities of the other worse."""
    rng = np.random.default_rng(11)
    of = objective(kind, classes=2)
    said, is_even = rng.uniform(0.55, 0.95, 400), np.arange(400) % 2 == 0
    truth = np.where(is_even, said > 0.7, said < 0.7).astype(np.float64)
    prediction = said if kind == "binary" else np.stack([1 - said, said], 1)
    (harmful,) = fit_calibration(of, LabelPredictions(rows(list(range(400)), truth.tolist()), prediction))
    assert harmful.why_not == "made of half of the labels, it does not improve the probabilities of the others"
    assert (harmful.temperature, harmful.labels) == (None, 400)
    right = (rng.random(400) < said**3).astype(np.float64)
    (useful,) = fit_calibration(of, LabelPredictions(rows(list(range(400)), right.tolist()), prediction))
    assert useful.temperature is not None


def test_bounds_do_not_widen_an_interval() -> None:
    truth = np.arange(19.0)
    truth[18] = 1e6
    censoring = np.zeros(19, np.int8)
    censoring[18] = ABOVE
    labels = LabelRows(np.arange(19), np.zeros(19, np.int64), truth, censoring)
    (found,) = fit_calibration(objective(), LabelPredictions(labels, np.zeros(19)))
    assert found == Calibration(18, half_width=17.0)  # rank ceil(19 * 0.9) = 18 of 18 exact ones


def test_temperature_below_1000_labels_a_rising_map_from_there_and_each_output_by_itself() -> None:
    of = objective("multilabel", 3, 2)
    count = 1000
    truth = np.tile([0.0, 1.0, 1.0, 1.0], count // 4)
    many = LabelRows(np.arange(count), np.zeros(count, np.int64), truth)
    few = LabelRows(np.arange(20), np.ones(20, np.int64), truth[:20])
    each = [LabelPredictions(many, truth), LabelPredictions(few, truth[:20])]
    both = LabelPredictions(merging.joined_predictions(each, [of] * 2).rows, np.zeros(0))
    prediction = np.where(both.rows.outputs == 0, 0.3, np.where(both.rows.truth == 1, 0.6, 0.5))
    predictions = LabelPredictions(both.rows, prediction)
    first, second, third = fit_calibration(of, predictions)
    assert first.isotonic is not None
    assert first.temperature is None
    assert first.labels == count
    assert second.temperature is not None
    assert second.isotonic is None
    assert second.labels == 20
    assert third.why_not == "too few validation labels, fewer than 10: 0"
    after = calibrated(of, (first, second, third), predictions)
    np.testing.assert_allclose(after[both.rows.outputs == 0], 0.75)  # the share of yes wherever the model said 0.3
    assert (after[both.rows.outputs == 1] != prediction[both.rows.outputs == 1]).any()
    (of_first, _, of_third) = check_calibration(of, predictions, after, after, after)
    assert of_first["calibration_error_before"] == pytest.approx(0.45)
    assert of_first["calibration_error_after"] == pytest.approx(0.0, abs=1e-12)
    assert of_third == {}


def test_predictions_are_written_in_the_unit_of_the_table_with_bounds_the_right_way_round(tmp_path: Path) -> None:
    of = objective(unit="nM", transform="p")
    labels = LabelRows(np.array([0, 1]), np.zeros(2, np.int64), np.array([7.0, 6.0]), np.array([EXACT, BELOW], np.int8))
    bounds = np.array([[7.0, np.nan], [9.0, np.nan]])
    joined = MergedPredictions(LabelPredictions(labels, np.array([8.0, 6.0])), np.zeros(2), *bounds, None)
    predictions_file.write(tmp_path / "p.csv", [("test", [of], [joined])], "protein {}".format)
    assert list(csv.reader((tmp_path / "p.csv").open())) == [
        list(predictions_file.COLUMNS),
        ["protein 0", "test", "t0", "", "100", "10", "1", "100", "", "", "-8"],
        ["protein 1", "test", "t0", "", ">1000", "1000", "", "", "", "", "-6"],  # weaker than measured, so more nM
    ]


def test_pairs_of_residues_have_a_prevalence_and_a_reason_for_each_other_baseline() -> None:
    positions = np.array([[0, 5], [1, 6], [0, 5], [2, 7]], np.int32)
    labels = Labels(np.arange(5), np.zeros(4, np.int32), np.array([0, 1, 1, 0], np.float32), None, positions)
    parts = PartRecords(np.arange(0, 3), np.zeros(0, np.int64), np.arange(3, 4))
    contacts = objective("binary", classes=2, level="pair")
    began = of_beside.time.monotonic()
    found = dict(fit_baselines(contacts, labels, parts, ["A" * 9] * 4, NO_VECTORS, began, pytest.fail))
    prevalence = found[CONSTANT]
    assert isinstance(prevalence, TaskBaseline)
    assert prevalence.predictions.prediction.tolist() == [pytest.approx(2 / 3)]
    assert {found[name] for name in (RESIDUES, FROZEN, NEAREST)} == {"it is not defined for pairs of residues"}
    reasons = {"contact": str(found[NEAREST])}
    lacking = tuple(BaselineScores(name, TaskScores(()), {}, reasons, 0.0) for name in (FROZEN, NEAREST))
    assert text.format_missing(replace(results(), baselines=lacking)) == [
        "contact has no ridge on encoder, no nearest neighbour: it is not defined for pairs of residues."
    ]


def scored(task: str, value: float | None, low: float | None = None, **fields: object) -> TaskScore:
    high = None if low is None or value is None else 2 * value - low
    return TaskScore(task, "t", "regression", "spearman", 0.0, value, low, high, 40, 40, **fields)  # type: ignore[arg-type]


def results() -> Results:
    rising = Calibration(50, isotonic=((0.1, 0.9), (0.2, 1.0)))
    audit = SplitAudit("f", "mmseqs2", False, (Overlap("train", 40, 80, 1, (0.3,), (4,), 40),), None)
    model = TaskScores(
        (scored("a", 0.8, 0.7), scored("b", 0.5, 0.3), scored("c", 0.2, 0.1), scored("d", None, undefined="no label"))
    )
    ridge = TaskScores((scored("a", 0.6), scored("b", 0.45), scored("c", 0.2), scored("d", None, undefined="no label")))
    return Results(
        part="test",
        scores=model,
        validation=None,
        baselines=(BaselineScores("ridge on residues", ridge, {"t": "ridge"}, {}, 1.5),),
        members=(EnsembleMemberFacts("seed-0", 0, None, 20, "validation"), EnsembleMemberFacts("seed-1", 1, None, 40,
        "validation")), seeds=tuple(SeedScores(n, TaskScores((scored("a", value),))) for n, value in enumerate((0.6,
        0.8))), ceilings=(ReplicateCeiling("t", "a", 12, 0.5, 0.81),), calibrations=(TaskCalibration("t", "a", rising,
        {"coverage": 0.85}),), split="a random split", split_fingerprint="f", audit=audit,
    )  # fmt: skip


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results().write(tmp_path / "scores.json")
    assert Results.read(tmp_path / "scores.json") == results()
    content = json.loads((tmp_path / "scores.json").read_text())
    assert content["skill"] == pytest.approx(0.5)
    content["scores"]["tasks"][1]["value"] = "0.5"
    (tmp_path / "scores.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"scores\.json is damaged: scores\.tasks\.1\.value: .*; start the run again"):
        Results.read(tmp_path / "scores.json")
    (tmp_path / "scores.json").write_text('{"format": "zymogen.scores/9"}')
    with pytest.raises(ValueError, match=r"has the format 'zymogen\.scores/9'; 'zymogen\.scores/4' is read"):
        Results.read(tmp_path / "scores.json")


def test_numbers_that_are_not_finite_are_never_written_as_scores(tmp_path: Path) -> None:
    wrong = replace(results(), scores=TaskScores((replace(scored("a", 0.8), values={"pearson": math.nan}),)))
    with pytest.raises(ValueError, match=r"scores\.tasks\.0\.values\.pearson: .*; report this"):
        wrong.write(tmp_path / "scores.json")
    assert not list(tmp_path.iterdir())


def test_somebody_elses_scores_have_a_value_or_a_reason(tmp_path: Path) -> None:
    results().write(tmp_path / "scores.json")
    content = json.loads((tmp_path / "scores.json").read_text())
    content["scores"]["tasks"][0]["value"] = None
    (tmp_path / "scores.json").write_text(json.dumps(content))
    tables = report_sections.scores(Results.read(tmp_path / "scores.json")).sheets
    assert tables[1].rows[0] == ("a", "not measured")
    content["scores"]["tasks"][0]["chance"] = 1.0
    (tmp_path / "scores.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"scores\.tasks\.0: .*'spearman' is 1 at best and 1\.0 by chance"):
        Results.read(tmp_path / "scores.json")


def test_no_folder_of_a_machine_is_in_a_table(tmp_path: Path) -> None:
    found = Overlap(f"{PRETRAINING}{tmp_path / 'u50'}", 40, 80, 1, (0.3,), (4,), 40)
    audit = replace(results().audit, comparisons=(found,))
    (table, *_) = report_sections.split(replace(results(), audit=audit)).sheets
    assert {row[0] for row in table.rows} == {"pretraining u50"}


def test_sentences_on_calibration_are_of_tasks_that_have_a_score() -> None:
    """An undefined task with 5 of 6 labels in its interval, and one whose probabilities have no calibration."""
    tasks = scored("a", 0.5), scored("b", None, undefined="6 labels, fewer than 10"), scored("c", 0.7), scored("d", 0.6)
    errors = {"calibration_error_before": 0.25, "calibration_error_after": 0.33}
    fits = {
        "a": (Calibration(40, half_width=1.0), {"coverage": 0.9}),
        "b": (Calibration(6, half_width=1.0), {"coverage": 0.83}),
        "c": (Calibration(40, temperature=2.0), errors),
        "d": (Calibration(1, why_not="too few"), {"calibration_error_before": 0.6, "calibration_error_after": 0.6}),
    }
    calibrations = tuple(TaskCalibration("t", name, *of) for name, of in fits.items())
    base = Results("test", TaskScores(tasks), None, (), (), (), (), calibrations, "random", "5" * 32, None)
    intervals, probabilities = text.calibrated(base)
    assert intervals == "Intervals that promise 90 % hold 90% of the truth in test."
    assert probabilities == (
        "Calibration made probabilities worse: they are off by 0.250 before and 0.330 after their calibration "
        "(mean calibration error in test)."
    )
    better = TaskCalibration("t", "e", Calibration(40, temperature=2.0), {**errors, "calibration_error_after": 0.05})
    _, probabilities = text.calibrated(
        replace(base, scores=TaskScores((*tasks, scored("e", 0.6))), calibrations=(*calibrations, better))
    )
    assert probabilities == (
        "Probabilities are off by 0.250 before and 0.190 after their calibration (mean calibration error in test; "
        "worse in c)."
    )
    near = TaskCalibration("t", "c", Calibration(40, temperature=2.0), {**errors, "calibration_error_after": 0.2503})
    _, probabilities = text.calibrated(replace(base, calibrations=(calibrations[0], near)))
    assert probabilities.startswith("Probabilities are off by 0.250 before and 0.250 after")
    chose = replace(calibrations[0], calibration=Calibration(40, half_width=1.0, chose=True))
    said, _ = text.calibrated(replace(base, calibrations=(chose, *calibrations[1:])))
    assert said.endswith("; the labels that they come from also chose the checkpoint, which makes them too short.")


def test_the_closing_words_say_where_the_model_loses_and_what_is_undefined() -> None:
    lines = text.format_summary(replace(results(), caveats=tuple(text.caveats(results()))))
    assert [" ".join(line.split()) for line in lines[1:3]] == [
        "task metric model 95 % interval over seeds ridge on residues replicates agree to labels",
        "a Spearman 0.800 0.700 to 0.900 0.700 +- 0.141 0.600 Pearson 0.810 (12 labels) 40",
    ]
    assert lines[5:] == [
        "",
        "The model is better than every baseline in 2 of 3 tasks, in 1 of these by more than its interval.",
        "A baseline is as good or better in 1 of 3 tasks: c (ridge on residues 0.200, model 0.200).",
        "Undefined in test: d: no label.",
        "Intervals that promise 90 % hold 85% of the truth in test.",
        "Split: a random split.",
    ]
    few = TaskScores((scored("a", None, undefined="5 labels, fewer than 10"),))
    said = "Checkpoints are chosen by the loss in validation: no task has enough labels there for its metric."
    assert said in text.caveats(replace(results(), validation=few))
    assert said not in text.caveats(replace(results(), validation=results().scores))
