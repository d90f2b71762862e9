"""Numerical faults: a run falls back once; it stops where it meets one again, and trains on without what it was fed."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from data.order.plan import EMPTY_CHAIN, Cursor
from data.settings import DataSettings
from pretrain.__main__ import main
from pretrain.inspect.__main__ import main as inspect
from pretrain.model.settings import ModelSettings
from pretrain.recipe import Recipe
from support.chaos import leaping_loss
from support.inputs.written_runs import WrittenStarts
from support.jobs.numerical_faults import BAD_BINS, BINS, bad_bins, bad_labels, not_finite_once
from support.kept_runs import STEPS_12, begun, ends, same
from support.launching import End, bit_equal, end_of, lines, with_rollbacks
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.manifest import TrainerState
from zymogen.trainer.optimizer.settings import ScheduleSettings
from zymogen.trainer.recovery.loss_monitor import (
    ENOUGH,
    REMEMBERED,
    LossMonitor,
    faults_met,
    remedies_of,
    require_remedy,
)
from zymogen.trainer.run.attempts import AttemptRecords, attempts
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.settings import RunSettings

SAVES = "run.checkpoint_every=4"
SKIP = f"data.skip_bins=[{','.join(map(str, BAD_BINS))}]"


# What is a fault ----------------------------------------------------------------------------------


def state_at(step: int) -> TrainerState:
    return TrainerState(step=step, tokens_seen=step, cursor=Cursor(), chain=EMPTY_CHAIN, skipped_steps=0)


def taken(numerics: LossMonitor, first: int, losses: list[float]) -> list[str | None]:
    """What each step is found to be, from step `first` on."""
    found = [numerics.check(state_at(first + i - 1), loss, True, 1.0) for i, loss in enumerate(losses)]
    return [fault and fault.said for fault in found]


def test_a_loss_that_leaps_above_the_median() -> None:
    numerics = LossMonitor(2.0, None, ())
    assert taken(numerics, 1, [3.0] * (ENOUGH - 1) + [9.0]) == [None] * ENOUGH  # too few to tell
    assert taken(numerics, ENOUGH + 1, [5.0, float("nan"), 1.0]) == [None] * 3
    assert taken(numerics, ENOUGH + 4, [5.01]) == [
        f"the loss was 5.010 at step {ENOUGH + 4}, 2.010 above the median of the {ENOUGH + 2} steps before it "
        "(run.spike_nats = 2)"
    ]
    without = LossMonitor(None, None, ())
    assert taken(without, 1, [3.0] * ENOUGH + [99.0]) == [None] * (ENOUGH + 1)


def test_the_median_is_of_the_latest_steps() -> None:
    numerics = LossMonitor(2.0, None, ())
    assert taken(numerics, 1, [1.0] * 30) == [None] * 30
    assert taken(numerics, 31, [2.9] * REMEMBERED) == [None] * REMEMBERED
    assert taken(numerics, 31 + REMEMBERED, [4.8, 5.0]) == [None, taken(numerics, 32 + REMEMBERED, [5.0])[0]]


def continued(numerics: LossMonitor, step: int, spike_nats: float | None = 2.0) -> LossMonitor:
    """What a fresh process knows that continues from the checkpoint of a step, by the bytes of that."""
    record = replace(state_at(step), entries=numerics.entry).to_bytes()
    return LossMonitor(spike_nats, TrainerState.from_bytes(record), ())


@pytest.mark.parametrize("step", range(ENOUGH - 1, REMEMBERED + 8, 7))
def test_a_restart_at_any_step_changes_no_judgement(step: int) -> None:
    """The losses are in the checkpoint, also where the leap comes with the first step after it."""
    losses = [3 + math.sin(i) for i in range(step)]
    whole = LossMonitor(2.0, None, ())
    assert taken(whole, 1, losses) == [None] * step
    restarted = continued(whole, step)
    after = [3.1, float("nan"), 2.9, 6.9, 3.0, 9.0]
    judged = taken(restarted, step + 1, after)
    assert judged == taken(whole, step + 1, after)
    assert judged[3] is None or step >= ENOUGH - 1
    assert judged[-1] is not None
    assert restarted.entry == whole.entry


def test_three_steps_in_a_row_without_a_finite_gradient() -> None:
    numerics = LossMonitor(None, None, ())

    def found(pattern: str) -> list[bool]:
        """Of steps that were taken (.), skipped (x), or skipped as the loss scale was too high (s)."""
        return [
            numerics.check(state_at(i), 3.0, kind == ".", 2.0 if kind == "s" else 1.0) is not None
            for i, kind in enumerate(pattern)
        ]

    assert found("xx.xx.ssss.sxx.xx") == [False] * 17
    assert found("x") == [True]
    numerics = LossMonitor(None, None, ())
    assert found("xx") == [False, False]
    assert numerics.entry == {"loss_monitor": {"losses": [], "skipped_in_a_row": 2}}
    numerics = continued(numerics, 2)
    assert found("x") == [True]
    numerics = continued(continued(numerics, 3), 3)
    assert (found(".xx"), found("x")) == ([False] * 3, [True])


@pytest.mark.parametrize("name", ["RollbackError", "NumericalFaultError"])
def test_a_fault_is_met_again_at_its_step(tmp_path: Path, name: str) -> None:
    written = WrittenStarts(tmp_path)

    def met() -> list[int]:
        return faults_met(attempts(AttemptRecords.read(written.run)))

    for _ in range(2):
        written.start()
        written.error(error=name)
    assert met() == [7, 7]
    written.start(exit_class=None)  # it was killed before it came there
    written.start()
    written.error(step=9)  # something else
    assert met() == [7, 7]
    written.start(despite_failures=True)
    assert met() == []
    written.error(step=12, error=name)
    assert met() == [12]
    written.start(exit_class="finished")
    assert met() == []


def recipe(**changed: Any) -> Recipe:
    """A recipe whose sections have some values changed, as SECTION_NAME=value."""
    base: Any = Recipe(
        data=DataSettings(sources=("a.fasta",)),
        model=ModelSettings(preset="esm2_8m"),
        schedule=ScheduleSettings(total_tokens=1_000_000),
        run=RunSettings(directory="r"),
    )
    for name, value in changed.items():
        section, _, field = name.partition("_")
        base = replace(base, **{section: replace(getattr(base, section), **{field: value})})
    return cast(Recipe, base)


def test_a_stopped_run_is_refused_until_a_remedy_changed(tmp_path: Path) -> None:
    """Whatever else changes; a run that has come past the step by a remedy may go back to how it was."""
    run = RunDirectory(tmp_path)
    line = {"attempt": 2, "step": 22, "fault": "the loss was 9", "bins": [147, 153], "remedy": "lower the rate"}
    faults = [line | {"remedies": remedies_of(recipe())}, {"attempt": 2, "step": 24, "saves_failed_for_s": 9.0}]

    def is_refused(recipe: Recipe, newest_step: int = 20) -> bool:
        try:
            require_remedy(run, faults, newest_step, recipe)
        except ValueError as error:
            messages.append(str(error))
            return True
        return False

    messages: list[str] = []
    lifted = {"data_skip_bins": (150,), "schedule_peak_lr": 1e-5, "schedule_warmup": 0.3, "run_spike_nats": 9.0}
    assert not any(is_refused(recipe(**{name: value})) for name, value in lifted.items())
    assert not is_refused(recipe(run_spike_nats=None))
    others = {
        "data_workers": 1,
        "run_seed": 5,
        "run_checkpoint_every": 1,
        "run_log_every": 3,
        "data_bins_per_forward": 2,
    }
    assert all(is_refused(recipe(**{name: value})) for name, value in others.items())
    assert [is_refused(recipe(), step) for step in (0, 21, 22, 23)] == [True, True, False, False]
    faults.insert(1, line | {"step": 30, "remedies": remedies_of(recipe(run_spike_nats=None))})
    assert [is_refused(recipe()), is_refused(recipe(data_skip_bins=(1,)))] == [True, False]
    assert set(messages) == {
        f"{tmp_path}: the numerical fault at step 22, which stopped attempt 2, would come again, as nothing was "
        "changed: the loss was 9, fed the bins 147 to 153; lower the rate, and start again with "
        "--allow-schedule-change; --despite-failures does not help"
    }


# In runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> End:
    """The end of a run without a fault."""
    folder = tmp_path_factory.mktemp("clean")
    assert main([str(recipe_in(folder)), *STEPS_12, SAVES]) == 0
    return end_of(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "base"), [((5, 6, 7), 4), ((1, 2, 3), 0)])
def test_what_does_not_come_again_leaves_no_trace(
    recipe_in, tmp_path: Path, clean: End, steps: tuple[int, ...], base: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with not_finite_once(steps):
        assert with_rollbacks(main, [str(recipe_in(tmp_path)), *STEPS_12, SAVES]) == 0
    assert same(end_of(run), clean)
    assert (begun(run), ends(run)) == ([0, base], ["error", "finished"])
    to = f"to step-{base:09d}" if base else "to its first step, as it has no checkpoint"
    said = f"RollbackError: the gradient was not finite in 3 steps in a row, up to step {steps[-1]}; the run rolls"
    assert f"{said} back once, {to}; its traceback is in {run}/ranks/rank-00000.jsonl" in capsys.readouterr().err
    assert not (run / "faults.jsonl").exists()


@pytest.mark.slow
def test_what_comes_again_is_named_and_left_out(
    recipe_in, tmp_path: Path, clean: End, capsys: pytest.CaptureFixture[str]
) -> None:
    words, run = [str(recipe_in(tmp_path)), *STEPS_12, SAVES, "run.keep_checkpoints=9"], tmp_path / "run"
    with bad_bins():
        assert with_rollbacks(main, words) == 78
        (line,) = lines(run / "faults.jsonl")
        assert (begun(run), ends(run)) == ([0, 4], ["error", "input"])
        error = capsys.readouterr().err.splitlines()[-1]
    numbers = list(range(4 * BINS, 7 * BINS))
    assert (line["step"], line["bins"], line["attempt"]) == (7, numbers, 2)
    names = [name for of_bin in line["sequences"] for name in of_bin]
    assert all(name and " " not in name for name in names)
    first = list(dict.fromkeys(names))
    assert error == (
        "error: the gradient was not finite in 3 steps in a row, up to step 7, where it was met before; lower "
        "schedule.peak_lr or lengthen schedule.warmup, or leave out what it was fed there with "
        f"data.skip_bins={str(numbers).replace(' ', '')}, and start again with --allow-schedule-change: the run "
        f"continues from step-000000004. The bins 28 to 48 held {len(first)} sequences: {', '.join(first[:10])}, ... "
        f"(all: {run}/faults.jsonl). What led to it is drawn by: python -m pretrain.report {run}"
    )

    # Without the three bins that are at fault, it trains to its end.
    words += ["--despite-failures", "--allow-schedule-change"]
    with bad_bins():
        assert main([*words, "data.skip_bins=[27,31]"]) == 78
        said = capsys.readouterr().err
        assert f"data.skip_bins names the bin 27, already trained up to {run}/checkpoints/step-000000004, where" in said
        assert main([*words, SKIP]) == 0
    end = end_of(run)
    assert (end.step, end.tokens_seen, end.cursor, end.skipped_steps) == (12, clean.tokens_seen, clean.cursor, 0)
    assert end.chain != clean.chain
    assert not bit_equal(end, clean)
    left_out = [verify(path).trainer.entries.get("skipped_bins") for path in reversed(find(run / "checkpoints"))]
    assert left_out == [None, *[{"bins": list(BAD_BINS)}] * 2]

    # What is left out stays left out, and the audit knows it.
    assert main([*words, "data.skip_bins=[31,37]"]) == 78
    said = capsys.readouterr().err
    assert f"data.skip_bins lacks the bin 44, left out up to {run}/checkpoints/step-000000012, where" in said
    assert inspect(["audit", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "3 of 3 as the recipe says, 12 steps; data.skip_bins left out 3 bins"
    )
    described = json.loads((run / "run.json").read_text())
    described["recipe"]["data"]["skip_bins"] = [31, 38, 44]
    (run / "run.json").write_text(json.dumps(described))
    assert inspect(["audit", str(run)]) == 70
    assert "1 of 3 as the recipe says" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_stays_stopped_until_a_bin_is_skipped(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leap is at step 22, two steps after the newest checkpoint: fewer than the median needs."""
    words, run = [str(recipe_in(tmp_path)), SAVES, "run.log_every=1"], tmp_path / "run"
    with bad_labels(leaping_loss.BIN, 5):
        assert with_rollbacks(main, words) == 78
        assert (begun(run), ends(run)) == ([0, 20], ["error", "input"])
        before = (run / "attempts.jsonl").read_bytes()
        for more in ([], ["--despite-failures"], ["--allow-schedule-change"], ["data.bins_per_forward=2"]):
            capsys.readouterr()
            assert main([*words, *more]) == 78
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith(
                f"error: {run}: the numerical fault at step 22, which stopped attempt 2, would come"
            )
            assert "fed the bins 147 to 153; lower schedule.peak_lr or lengthen schedule.warmup, or train" in error
            assert "data.skip_bins=[147,148,149,150,151,152,153], and start again with --allow-schedule-ch" in error
        assert (run / "attempts.jsonl").read_bytes() == before  # a refusal is no start
        assert not (run / "export").exists()
        assert main([*words, f"data.skip_bins=[{leaping_loss.BIN}]", "--allow-schedule-change"]) == 0
    assert begun(run) == [0, 20, 20]
    assert (run / "export").exists()
