"""How often checkpoints are saved: by what saves cost and how often machines fail; and which of them stay."""

import io
import re
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.__main__ import main
from support.checkpoint_run import build, save, written_at_once
from support.launching import lines
from zymogen.trainer.checkpoint import save_schedule
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.retention import retain
from zymogen.trainer.checkpoint.save_schedule import SaveSchedule
from zymogen.trainer.checkpoint.saver import SaveCost
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run import interval_schedule
from zymogen.trainer.run.settings import RunSettings

SEVEN_STEPS = "schedule.total_tokens=5_000"


def settings(**values: Any) -> RunSettings:
    return RunSettings(directory="run", checkpoint_every="auto", **values)


@pytest.mark.parametrize(
    ("processes", "hours", "at_2_s"),
    # The table of the intervals at Meta's two published rates, a stall of 2 s (seconds).
    [
        (8, 50_662, 9_549),
        (64, 50_662, 3_376),
        (512, 50_662, 1_194),
        (16_384, 50_662, 211),
        (8, 8_088, 3_816),
        (1_024, 8_088, 337),
    ],
)
def test_the_interval_is_youngs(processes: int, hours: float, at_2_s: float) -> None:
    found = save_schedule.optimal_interval(
        2.0, 10.0, 1, processes, settings(gpu_hours_per_failure=hours, may_lose="100 h")
    )
    assert found.seconds == pytest.approx(at_2_s, rel=2e-3)
    # Saves and half an interval that a failure undoes cost the same there, and together more at any other interval.
    assert found.stall_s / found.seconds == pytest.approx(found.seconds / (2 * found.failure_s))
    for other in (0.9 * found.seconds, 1.1 * found.seconds):
        assert replace(found, seconds=other).loss > found.loss


@pytest.mark.parametrize(("stall_s", "save_s", "slowdown"), [(0.01, 20.0, 0.1), (2.0, 60.0, 0.02), (0.5, 3.0, 0.0)])
def test_the_interval_is_the_one_that_loses_least(stall_s: float, save_s: float, slowdown: float) -> None:
    """Against time lost in a simulated run: steps are slower while a save is written, and a failure undoes it too."""
    asked = settings(gpu_hours_per_failure=5.0, may_lose="100 h")
    found = save_schedule.optimal_interval(stall_s, save_s, 1, 1, asked, slowdown)
    assert found.loss == pytest.approx(lost(found.seconds, stall_s, save_s, slowdown, 18_000.0), rel=1e-3)
    for other in (0.8 * found.seconds, 1.25 * found.seconds):
        assert lost(other, stall_s, save_s, slowdown, 18_000.0) > found.loss


def lost(interval_s: float, stall_s: float, save_s: float, slowdown: float, failure_s: float) -> float:
    """Share of the time: what saves take of an interval, and the work since the last whole save before a failure."""
    kept = interval_s - stall_s - save_s * (1 - 1 / (1 + slowdown))
    moments = (np.arange(10_000) + 0.5) / 10_000 * interval_s  # of a failure, after a save was begun
    undone = np.where(moments < save_s, moments + interval_s, moments)
    return (interval_s - kept) / interval_s + float(undone.mean()) / failure_s


def test_the_slowdown_beside_a_save_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 s alone and 1.25 s beside a save; some in which a save begins or ends, and one of validation."""
    now, saves = 0.0, _Saves()
    monkeypatch.setattr(save_schedule, "monotonic", lambda: now)
    save_due: Any = SaveSchedule(settings(), saves, 1, lambda _: None)  # type: ignore[arg-type]
    assert save_due._slowdown() == 0.0
    for step in range(200):
        saves.is_writing = step % 20 >= 12
        now += 30.0 if step % 20 in (0, 12) else 90.0 if step == 5 else 1.25 if saves.is_writing else 1.0
        save_due.due_by_clock()
    assert save_due._slowdown() == 0.25


def test_the_interval_lies_between_what_may_be_lost_and_what_a_save_takes() -> None:
    rare = settings(gpu_hours_per_failure=1e6, may_lose="10 min")
    assert (
        save_schedule.optimal_interval(1.0, 20.0, 1, 1, rare).seconds == 580
    )  # with the 20 s of a save, that are ten minutes
    often = settings(gpu_hours_per_failure=0.01)
    assert save_schedule.optimal_interval(0.01, 20.0, 1, 1, often).seconds == 30
    assert (
        save_schedule.optimal_interval(1.0, 3600.0, 1, 1, rare).seconds == 5400
    )  # a save cannot be quicker than it is


class _Saves:
    cost: SaveCost | None = None
    is_writing = retry_due = False


def test_saves_are_due_at_the_pace_of_the_latest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said, saves = 0.0, [], _Saves()
    monkeypatch.setattr(interval_schedule, "monotonic", lambda: now)
    save_due: Any = SaveSchedule(settings(gpu_hours_per_failure=1.0), saves, 2, said.append)  # type: ignore[arg-type]

    def first_due() -> float:
        """When the next save is due, and is made."""
        nonlocal now
        began = now
        while not save_due.due_by_clock():
            now += 1.0
        save_due.reset()
        return now - began

    assert first_due() == 60  # before anything was measured
    assert said == []
    saves.cost = SaveCost(1.0, 2.0, 86_000_000)
    assert first_due() == 60  # the root of 2 x 1 s x 1,800 s
    assert said == [
        "checkpoint every 1:00 (auto): a save stalls training for 1 s, takes 2 s and makes steps 0% longer meanwhile, "
        "a failure is expected every 0 h; expected loss 0.034 of the time, at most 1:02 of training at a failure; "
        "86 MB each, 5.16 GB written an hour"
    ]
    saves.cost = SaveCost(1.2, 2.0, 86_000_000)
    assert first_due() == 66
    assert len(said) == 1, "told again for a change of a tenth"
    saves.cost = SaveCost(4.0, 2.0, 86_000_000)
    assert first_due() == 120
    assert len(said) == 2


def test_a_run_chooses_its_pace(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_schedule, "_FIRST_S", 0.001)
    words = ["run.checkpoint_every=auto", "run.gpu_hours_per_failure=100", "run.log_every=1"]
    with redirect_stderr(io.StringIO()) as said, written_at_once():
        assert main([str(recipe_in(tmp_path)), SEVEN_STEPS, *words]) == 0
    (line,) = (line for line in said.getvalue().splitlines() if line.startswith("checkpoint every"))
    saved = [line for line in lines(tmp_path / "run/metrics.jsonl") if "stall_s" in line]
    assert [line["step"] for line in saved] == [1, 7]
    minutes, seconds = map(int, re.findall(r"\d+", line)[:2])
    assert 60 * minutes + seconds == pytest.approx((2 * saved[0]["stall_s"] * 360_000) ** 0.5, abs=1)


def test_a_step_that_stays_is_saved_in_any_case_and_never_removed(tmp_path: Path) -> None:
    of_three = settings(keep_checkpoints_every=3)
    save_due = SaveSchedule(of_three, _Saves(), 1, print)  # type: ignore[arg-type]
    assert [step for step in range(1, 8) if save_due.due_at_step(step)] == [3, 6]
    state = TorchState(*build())
    for step in range(2, 8):
        committed = save(tmp_path, state, step)
    retain(tmp_path, keep=1, committed=committed, stays=of_three.stays)
    assert [verify(path).manifest.step for path in find(tmp_path)] == [7, 6, 3]


@pytest.mark.slow
def test_every_so_manieth_checkpoint_stays(recipe_in, tmp_path: Path) -> None:
    words = ["run.checkpoint_every=2", "run.keep_checkpoints=1", "run.keep_checkpoints_every=3"]
    assert main([str(recipe_in(tmp_path)), SEVEN_STEPS, *words]) == 0
    found = [verify(path).manifest.step for path in find(tmp_path / "run/checkpoints")]
    assert found == [7, 6, 3]
    saved = [line["step"] for line in lines(tmp_path / "run/metrics.jsonl") if "stall_s" in line]
    assert saved == [2, 3, 4, 6, 7]


def test_an_interval_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"run\.checkpoint_every is 'sometimes'; .* '2 h', or 'auto'"):
        RunSettings(directory="run", checkpoint_every="sometimes")
    with pytest.raises(ValueError, match=r"run\.may_lose is '7'; it must be a time"):
        settings(may_lose="7")


def test_the_rate_of_failures_decides_nothing_about_an_interval_that_is_given() -> None:
    for name, value in (("may_lose", "2 h"), ("gpu_hours_per_failure", 1.0)):
        with pytest.raises(ValueError, match=rf"run\.{name} is .*; only run\.checkpoint_every = 'auto' reads it"):
            RunSettings(directory="run", **{name: value})
