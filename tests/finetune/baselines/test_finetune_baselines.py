"""Baselines: predictions that were computed by hand or in another way, from training labels alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from data.homology.relatives import SearchHits, hits
from finetune.baselines import ridge
from finetune.baselines.baseline import PartRecords, by_labelled, constant
from finetune.baselines.features import Features, one_hot, windows
from finetune.baselines.nearest import Search, nearest_neighbour
from finetune.baselines.ridge import linear
from finetune.labels.labels import BELOW, Labels
from finetune.metrics.predictions import label_rows
from finetune.metrics.scoring import score
from finetune.tasks.settings import Level, TaskSettings
from finetune.tasks.task import Task
from support.inputs.token_stores import store_of

Floats = NDArray[np.float64]


def labels_of(matrix: Floats) -> Labels:
    """Labels of a table (records, outputs) in which NaN is missing."""
    seen = ~np.isnan(matrix)
    pointers = np.concatenate([[0], np.cumsum(seen.sum(1))])
    return Labels(pointers, np.nonzero(seen)[1].astype(np.int32), matrix[seen].astype(np.float32))


def objective(kind: str, outputs: int = 1, classes: str = "", level: Level = "sequence") -> Task:
    names = tuple(f"t{number}" for number in range(outputs))
    ones = np.ones(outputs)
    counts = np.ones((outputs, len(classes)), np.int64)
    return Task(TaskSettings(name="assay", type=kind, level=level), names, tuple(classes), 0 * ones, ones, counts)


def parts(*ends: int) -> PartRecords:
    train, valid, asked = ends
    return PartRecords(np.arange(train), np.arange(train, valid), np.arange(valid, asked))


def test_mean_of_training_labels() -> None:
    table = np.array([[1.0, 5.0], [3.0, np.nan], [np.nan, np.nan], [9.0, 7.0]])
    found = constant(objective("regression", 2), labels_of(table), parts(2, 2, 4))
    assert found.name == "mean"
    assert found.predictions.prediction.tolist() == [2.0, 5.0]
    assert found.predictions.rows.records.tolist() == [3, 3]
    assert found.predictions.rows.truth.tolist() == [9.0, 7.0]


def test_prevalence_of_training_labels() -> None:
    table = np.array([[0.0], [2.0], [2.0], [1.0], [0.0]])
    found = constant(objective("multiclass", classes="abc"), labels_of(table), parts(3, 4, 5))
    assert found.predictions.prediction.tolist() == [[1 / 3, 0, 2 / 3]]
    yes = constant(objective("binary"), labels_of(table[:, :1] > 0), parts(3, 4, 5))
    assert yes.predictions.prediction.tolist() == [pytest.approx(2 / 3)]


def test_bounds_are_no_values_and_an_unlabelled_task_gets_the_mean_of_all() -> None:
    labels = labels_of(np.array([[1.0, np.nan], [8.0, np.nan], [2.0, 3.0]]))
    censored = Labels(labels.pointers, labels.outputs, labels.values, np.array([0, BELOW, 0, 0], np.int8))
    assert constant(objective("regression", 2), censored, parts(2, 2, 3)).predictions.prediction.tolist() == [1.0, 1.0]


def test_outputs_with_the_same_places_are_fitted_together() -> None:
    rng = np.random.Generator(np.random.Philox(11))
    table = rng.normal(size=(6, 4))
    table[2, 3] = np.nan
    found = {
        tuple(outputs.tolist()): rows.shape
        for outputs, rows in by_labelled(label_rows(labels_of(table), np.arange(6)), 4)
    }
    assert found == {(0, 1, 2): (3, 6), (3,): (1, 5)}


def no_search(asked: NDArray[np.int64], train: NDArray[np.int64]) -> SearchHits:
    raise AssertionError("sequences of one length are compared by position")


VARIANTS = ["ACDE", "ACDF", "ACGE", "WCDE", "ACDW", "ACGG", "YCGE"]


def test_nearest_by_position_is_the_mean_of_equally_near_ones() -> None:
    table = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0], [np.nan, 8.0], [0, 0], [0, 0], [0, 0]])
    found = nearest_neighbour(objective("regression", 2), labels_of(table), parts(4, 4, 7), VARIANTS, no_search)
    first, second = (found.predictions.prediction[found.predictions.rows.outputs == output] for output in (0, 1))
    # ACDW: 1 from ACDE and ACDF; of the second task 1 from ACDF. ACGG, YCGE: 1 from ACGE.
    assert first.tolist() == [2.0, 5.0, 5.0]
    assert second.tolist() == [4.0, 6.0, 6.0]


def test_neighbours_that_agree_make_a_probability_of_one() -> None:
    """The first sequence is equally far from all others but the last, whose label is another."""
    sequences = ["A" * 12, *("A" * at + residue + "A" * (11 - at) for at in range(12) for residue in "CDEFG"), "W" * 12]
    for near in range(2, 60):
        labels = labels_of(np.array([[1.0]] * 61 + [[0.0]]))
        split = PartRecords(np.array([*range(1, near + 1), 61]), np.zeros(0, np.int64), np.array([0]))
        found = nearest_neighbour(objective("binary"), labels, split, sequences, no_search)
        assert found.predictions.prediction.tolist() == [1.0]


def words_of(sequences: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """A search by shared words, as on a machine without MMseqs2."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    store = store_of(folder, [(str(number), letters) for number, letters in enumerate(sequences)])
    return lambda asked, train: hits(store, asked, store, train)


def proteins() -> tuple[list[str], Labels]:
    """Two families and a stranger: a member of each is asked for, with another start."""
    rng = np.random.Generator(np.random.Philox(11))
    first, second, other = ("".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 120)) for _ in range(3))
    sequences = [first, second, "M" + second[:100], first[10:], other]
    return sequences, labels_of(np.array([[1.0], [2.0], [9.0], [9.0], [9.0]]))


def test_shared_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences, labels = proteins()
    search = words_of(sequences, tmp_path, monkeypatch)
    found = nearest_neighbour(objective("regression"), labels, parts(2, 2, 5), sequences, search)
    assert found.predictions.prediction.tolist() == [2.0, 1.0, 1.5]
    assert (
        "approximate, as MMseqs2 is not installed; 33% of the labels have no neighbour, and get what the mean gives"
        in found.description
    )


@pytest.mark.launch
@pytest.mark.skipif(shutil.which("mmseqs") is None, reason="no program 'mmseqs' (apt install mmseqs2)")
def test_alignments(tmp_path: Path) -> None:
    sequences, labels = proteins()
    store = store_of(tmp_path, [(str(number), letters) for number, letters in enumerate(sequences)])
    found = nearest_neighbour(
        objective("regression"),
        labels,
        parts(2, 2, 5),
        sequences,
        lambda asked, train: hits(store, asked, store, train),
    )
    assert found.predictions.prediction.tolist() == [2.0, 1.0, 1.5]
    assert "MMseqs2" in found.description


def test_one_hot_ridge_is_that_of_the_full_matrix() -> None:
    rng = np.random.Generator(np.random.Philox(11))
    sequences = ["".join(rng.choice(list("ACDE"), 8)) for _ in range(90)]
    full = np.array([[letter == kind for letter in sequence for kind in "ACDE"] for sequence in sequences], np.float64)
    counts = full.reshape(90, 8, 4).sum(1)
    full = np.concatenate([full, counts], 1)
    values = full @ rng.normal(size=full.shape[1]) + rng.normal(size=90)
    found = linear(
        "ridge on residues", objective("regression"), labels_of(values[:, None]), parts(60, 75, 90), one_hot(sequences)
    )
    stored = values.astype(np.float32).astype(np.float64)
    scaled = (stored[:60] - stored[:60].mean()) / stored[:60].std()
    fits = [Ridge(alpha).fit(full[:60], scaled) for alpha in ridge.ALPHAS]
    predicted = [fit.predict(full) * stored[:60].std() + stored[:60].mean() for fit in fits]
    best = int(np.argmin([((one[60:75] - stored[60:75]) ** 2).sum() for one in predicted]))
    assert found.predictions.prediction == pytest.approx(predicted[best][75:], abs=1e-3 * values.std())
    assert f"penalty {ridge.ALPHAS[best]:g}, chosen on the validation part" in found.description
    (task,) = score(objective("regression"), found.predictions).tasks
    assert task.value is not None
    assert task.value > 0.8


@pytest.mark.parametrize("columns", [5, 80])
def test_dense_ridge_standardises_and_chooses_for_each_output(columns: int) -> None:
    """With fewer and with more columns than rows; the second output is noise, and is held back most."""
    rng = np.random.Generator(np.random.Philox(11))
    matrix = rng.normal(3, 2, (120, columns))
    matrix[:, 0] = 7  # says nothing
    values = np.stack([matrix @ rng.normal(size=columns), rng.normal(size=120)], 1)
    values[matrix[:, 1] > 4, 1] = np.nan  # so that the mean of what is left is not 0
    features = Features(matrix, "vectors")
    found = linear("frozen", objective("regression", 2), labels_of(values), parts(60, 90, 120), features)
    stored = values.astype(np.float32).astype(np.float64)
    train = matrix[:60]
    spread = train.std(0)
    spread[0] = np.inf
    scaled = (matrix - train.mean(0)) / spread
    penalties = []
    for output in range(2):
        train, valid, asked = (part[~np.isnan(stored[part, output])] for part in parts(60, 90, 120))
        each = [Ridge(alpha).fit(scaled[train], stored[train, output]) for alpha in ridge.ALPHAS]
        losses = [((fit.predict(scaled[valid]) - stored[valid, output]) ** 2).sum() for fit in each]
        mine = found.predictions.prediction[found.predictions.rows.outputs == output]
        assert mine == pytest.approx(each[int(np.argmin(losses))].predict(scaled[asked]), abs=1e-8)
        penalties.append(ridge.ALPHAS[int(np.argmin(losses))])
    assert penalties[0] < penalties[1]
    assert f"penalty {penalties[0]:g} to {penalties[1]:g}, chosen" in found.description


def test_logistic_leaves_untrained_classes_at_zero() -> None:
    rng = np.random.Generator(np.random.Philox(11))
    matrix = rng.normal(size=(90, 4))
    truth = np.where(matrix[:, :1] > 0, 2.0, 0.0)
    truth[89] = 1  # of the part that is asked for
    of = objective("multiclass", classes="abc")
    found = linear(
        "frozen", of, labels_of(truth), parts(60, 75, 90), Features(matrix, "vectors")
    ).predictions.prediction
    assert (found[:, 1] == 0).all()
    assert found.sum(1) == pytest.approx(1)
    scaled = (matrix - matrix[:60].mean(0)) / matrix[:60].std(0)
    reference = LogisticRegression(C=1 / 0.01, tol=1e-8, max_iter=1000).fit(scaled[:60], truth[:60, 0])
    assert found[:, 2] == pytest.approx(reference.predict_proba(scaled[75:])[:, 1], abs=0.02)


def test_no_validation_label_takes_the_usual_penalty() -> None:
    rng = np.random.Generator(np.random.Philox(11))
    found = linear(
        "frozen",
        objective("regression"),
        labels_of(rng.normal(size=(20, 1))),
        parts(15, 15, 20),
        Features(rng.normal(size=(20, 3)), "v"),
    )
    assert "penalty 10" in found.description


def test_windows_are_those_around_each_residue() -> None:
    features = windows(["ACD", "X", "WY"], half=1)
    assert features.first_rows is not None
    assert features.first_rows.tolist() == [0, 3, 4]
    dense = features.matrix[np.array([0, 1, 3, 5])].toarray().reshape(4, 3, 21)
    kinds = "ACDEFGHIKLMNPQRSTVWYX"
    seen = [["".join(kinds[kind] for kind in np.flatnonzero(place)) for place in row] for row in dense]
    assert seen == [["", "A", "C"], ["A", "C", "D"], ["", "X", ""], ["W", "Y", ""]]


def test_window_baseline_of_residues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A residue's class is whether the one before it is C; 200 of the training residues suffice to find it."""
    rng = np.random.Generator(np.random.Philox(11))
    monkeypatch.setattr(ridge, "MOST_LABELS", 200)
    sequences = ["".join(rng.choice(list("ACD"), 30)) for _ in range(30)]
    values = np.array([[previous == "C" for previous in "A" + sequence[:-1]] for sequence in sequences], np.float32)
    positions = np.tile(np.arange(30), 30).astype(np.int32)
    labels = Labels(np.arange(0, 901, 30), np.zeros(900, np.int32), values.ravel(), None, positions)
    of = objective("binary", level="residue")
    found = linear("window", of, labels, parts(15, 20, 30), windows(sequences, 2))
    (task,) = score(of, found.predictions).tasks
    assert task.value == 1
    assert (task.labels, task.groups) == (300, 10)
    assert "on 200 of 450 training labels, chosen by hash" in found.description
    prevalence = constant(of, labels, parts(15, 20, 30)).predictions.prediction
    assert prevalence == pytest.approx(np.full(300, values[:15].mean()))
