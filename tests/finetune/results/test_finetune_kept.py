"""What the end of a run keeps of its steps, so that an interrupted one repeats only what is missing."""

from pathlib import Path

import numpy as np
import pytest

from finetune.baselines.baseline import TaskBaseline
from finetune.metrics.predictions import LabelPredictions, LabelRows
from finetune.results.cache import ResultCache

INPUTS = "0123456789abcdef" * 4


def predictions(begin: int, *, placed: bool = False) -> LabelPredictions:
    numbers = np.arange(begin, begin + 3)
    places = numbers.astype(np.int32) if placed else None
    return LabelPredictions(LabelRows(numbers, numbers % 2, numbers / 7, None, places), numbers / 3)


def same(one: LabelPredictions, other: LabelPredictions) -> bool:
    mine, theirs = one.rows, other.rows
    equal = all((getattr(mine, name) == getattr(theirs, name)).all() for name in ("records", "outputs", "truth"))
    placed = mine.positions is None and theirs.positions is None
    placed = placed or (mine.positions is not None and np.array_equal(mine.positions, theirs.positions))
    return bool(equal and placed and theirs.censoring is None and (one.prediction == other.prediction).all())


def never() -> TaskBaseline:
    raise AssertionError("this step was taken before")


def test_a_step_is_taken_once_and_its_arrays_come_back(tmp_path: Path) -> None:
    lists = [[predictions(0), predictions(5, placed=True)], [predictions(9)]]
    kept = ResultCache(tmp_path, INPUTS)
    assert kept.predictions("model-", lambda: (12, lists))[0] == 12
    made = TaskBaseline("mean", "each task: its mean", predictions(1), 0.5)
    assert kept.baseline("0-0", "mean or prevalence", lambda: made).description == made.description
    again = ResultCache(tmp_path, INPUTS)
    step, found = again.predictions("model-", lambda: (never().seconds, []))  # type: ignore[arg-type]
    assert step == 12
    assert [len(each) for each in found] == [2, 1]
    wanted = [one for each in lists for one in each]
    assert all(same(mine, theirs) for mine, theirs in zip(wanted, [*found[0], *found[1]], strict=True))
    back = again.baseline("0-0", "mean or prevalence", never)
    assert (back.name, back.description, back.seconds) == ("mean", "each task: its mean", 0.5)
    assert same(back.predictions, made.predictions)
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_damaged_and_nothing_of_other_inputs_is_taken(tmp_path: Path) -> None:
    first, second = (TaskBaseline("mean", "", predictions(begin), 1.0) for begin in (1, 2))
    (tmp_path / "ending-notes").mkdir()  # of somebody else
    path = ResultCache(tmp_path, INPUTS).folder / "a-0.npz"
    assert ResultCache(tmp_path, INPUTS).baseline("0", "a", lambda: first).predictions.rows.records[0] == 1
    path.write_bytes(path.read_bytes()[:-30])
    assert ResultCache(tmp_path, INPUTS).baseline("0", "a", lambda: second).predictions.rows.records[0] == 2
    assert ResultCache(tmp_path, INPUTS).baseline("0", "a", never).predictions.rows.records[0] == 2
    other = ResultCache(tmp_path, INPUTS[::-1])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ending-fedcba9876543210", "ending-notes"]
    other.baseline("0", "a", lambda: first)
    with pytest.raises(AssertionError, match="taken before"):
        ResultCache(tmp_path, INPUTS[::-1], again=True).baseline("0", "a", never)
