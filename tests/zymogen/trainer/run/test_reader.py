"""A run as it is read: whole lines alone, each step once, and whatever else is there."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.inputs.written_runs import TOKENS_A_STEP, WrittenRun, write_lines
from zymogen.trainer.run.reader import RunReader

WHERE = {"time": "2026-11-01T08:00:00+00:00", "world_size": 2}


def run_of(root: Path, starts: list[tuple[int, int]], lines: list[dict[str, Any]]) -> RunReader:
    """A run with the given (attempt, first step) and metrics."""
    WrittenRun(steps=0, exit=None).write(root)
    write_lines(root / "attempts.jsonl", [{**WHERE, "attempt": n, "base_step": base} for n, base in starts])
    write_lines(root / "metrics.jsonl", [{**WHERE, "tokens": line["step"], **line} for line in lines])
    return RunReader(root)


def test_repeated_steps_count_once(tmp_path: Path) -> None:
    root = WrittenRun(steps=40, attempts=4).write(tmp_path / "run")
    run = RunReader(root)
    assert run.metric("step").tolist() == list(range(1, 41))
    steps = [line["step"] for line in map(json.loads, (root / "metrics.jsonl").open()) if "loss" in line]
    assert len(steps) == 46  # the written lines do hold steps twice
    assert [each.base_step for each in run.attempts] == [0, 8, 18, 28]
    assert [each.exit for each in run.attempts] == ["killed", "killed", "killed", "finished"]
    assert (run.steps, run.tokens, run.is_finished, run.has_ended) == (40, 40 * TOKENS_A_STEP, True, True)
    earlier = RunReader(root, last_step=12)
    assert (earlier.steps, len(earlier.validations), earlier.scores) == (12, 0, {})


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([], [11, 12, 13, 14, 23, 32, 33]),
        ([(1, 0), (2, 2)], [11, 12, 23, 32, 33]),
        ([(1, 0), (2, 2), (3, 1)], [11, 32, 33]),  # the third began before the second, which no checkpoint holds
    ],
)
def test_steps_lost_in_a_restart_are_left_out(
    tmp_path: Path, starts: list[tuple[int, int]], expected: list[int]
) -> None:
    taken = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (3, 2), (3, 3)]
    lines = [{"attempt": attempt, "step": step, "loss": 10.0 * attempt + step} for attempt, step in taken]
    lines.append({"attempt": 1, "step": 4, "validation": {"mask_all": {"perplexity": 9.0}}})
    run = run_of(tmp_path / "run", starts, lines)
    assert run.metric("loss").tolist() == expected
    assert bool(run.validations) == (not starts)


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    root = WrittenRun(steps=5, validate_every=0).write(tmp_path / "run")
    whole = RunReader(root)
    for name in ("metrics.jsonl", "attempts.jsonl", "faults.jsonl"):
        with (root / name).open("ab") as file:
            file.write(b'\xff\xfe\n[]\n3\n"step"\nnull\n{"step": "x"}\n{"attempt": [1]}\n{"step": 6, "tokens": 4')
    begun = {"attempt": 9, "base_step": 5, "world_size": 1}
    with (root / "attempts.jsonl").open("a") as file:
        file.writelines(f"\n{json.dumps(begun | more)}" for more in ({}, {"time": "x"}, {"time": 3}))
    found = RunReader(root)
    assert found.metric("loss").tolist() == whole.metric("loss").tolist()
    assert (found.attempts, found.faults) == (whole.attempts, [{"step": "x"}, {"attempt": [1]}])


def test_missing_metrics_are_nan(tmp_path: Path) -> None:
    losses = [{"loss": 1.0}, {"loss": 1.0, "loss/rare": 2.0}, {"loss": None}]
    run = run_of(tmp_path / "run", [(1, 0)], [{"attempt": 1, "step": n, **loss} for n, loss in enumerate(losses)])
    np.testing.assert_array_equal(run.metric("loss/rare"), [np.nan, 2.0, np.nan])
    np.testing.assert_array_equal(run.metric("never"), [np.nan] * 3)
    assert math.isnan(run.metrics["loss"][-1])


def test_validations_and_checkpoints_by_step(tmp_path: Path) -> None:
    root = tmp_path / "run"
    lines: list[dict[str, Any]] = [{"attempt": 1, "step": n, "loss": 1.0} for n in (1, 2)]
    lines += [{"attempt": 1, "step": 1, "validation": {"a": {"skill": 0.5}}, "set": "ab"}]
    lines += [{"attempt": 1, "step": 2, **more} for more in ({"training": {"a": {"skill": None}}}, {"save_error": ""})]
    run = run_of(root, [(1, 0)], lines)
    assert [(each.step, each.part, each.test_set) for each in run.validations] == [
        (1, "validation", "ab"),
        (2, "training", ""),
    ]
    assert run.scores == {"a": {"skill": None}}
    assert (len(run.saves), len(run.failed_saves), run.checkpoints) == (0, 1, {})
    for name in ("step-000000010", "step-000000002", "step-1000000000", "step-x", ".quarantine"):
        (root / "checkpoints" / name).mkdir(parents=True)
    assert [*run.checkpoints] == [2, 10, 1_000_000_000]
    assert run.settings["model"]["preset"] == "esm2_8m"


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.json cannot be read.*is .* a run directory\?"):
        RunReader(tmp_path)
    for content, said in (
        ('{"format": "other/9"}', "has the format 'other/9'"),
        ('{"format": "zymogen.run/2", "recipe": 3}', "is damaged: recipe: Input should be an object"),
        ('{"format": "zymogen.run/2", "compute": [1]}', "is damaged: compute.0: Input should be a valid string"),
    ):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ValueError, match=rf"run\.json {said}"):
            RunReader(tmp_path)
