"""Numerical faults: a run falls back once; it stops where it meets one again, and trains on without what it was fed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from data.order.chain import GENESIS
from pretrain.__main__ import main
from pretrain.checkpoint import find, verify
from pretrain.checkpoint.manifest import TrainerState
from pretrain.inspect.__main__ import main as inspect
from pretrain.recovery.numerical import ENOUGH, REMEMBERED, NumericalFault, Numerics, faults_met
from support.assays.small_run import write
from support.inputs.written_runs import WrittenStarts
from support.jobs import fine_tuning_job
from support.jobs.numerical_faults import BAD_BINS, BINS, bad_bins, bad_labels, damaged_weights, not_finite_once
from support.kept_runs import STEPS_12, Trained, config, distances, yardstick
from support.launching import End, bit_equal, end_of, lines
from support.rank_pool import RankPool

SAVES = "run.checkpoint_every=4"
SKIP = f"data.skip_bins=[{','.join(map(str, BAD_BINS))}]"


def begun(run: Path) -> list[int]:
    """The step from which each start of a run began."""
    return [line["base_step"] for line in lines(run / "attempts.jsonl") if "base_step" in line]


def ends(run: Path) -> list[str]:
    return [line["exit"] for line in lines(run / "attempts.jsonl") if "exit" in line]


def same(a: End, b: End) -> bool:
    """Whether two runs ended with the same bytes and the same samples."""
    return bit_equal(a, b) and replace(a, tensors={}) == replace(b, tensors={})


# What is a fault ----------------------------------------------------------------------------------


def state_at(step: int) -> TrainerState:
    cursor = {"pass_index": 0, "window": 0, "bin": 0, "tokens_before_window": 0}
    return TrainerState(step=step, tokens_seen=step, cursor=cursor, chain=GENESIS, skipped_steps=0)


def taken(numerics: Numerics, first: int, losses: list[float]) -> list[str | None]:
    """What each step is found to be, from step `first` on."""
    found = [numerics.fault_of(state_at(first + i - 1), loss, True, 1.0) for i, loss in enumerate(losses)]
    return [fault and fault.said for fault in found]


def test_a_loss_that_leaps_above_the_median() -> None:
    numerics = Numerics(2.0)
    assert taken(numerics, 1, [3.0] * (ENOUGH - 1) + [9.0]) == [None] * ENOUGH  # too few to tell
    assert taken(numerics, ENOUGH + 1, [5.0, float("nan"), 1.0]) == [None] * 3
    assert taken(numerics, ENOUGH + 4, [5.01]) == [
        f"the loss was 5.010 at step {ENOUGH + 4}, 2.010 above the median of the {ENOUGH + 2} steps before it "
        "(run.spike_nats = 2)"
    ]
    without = Numerics(None)
    assert taken(without, 1, [3.0] * ENOUGH + [99.0]) == [None] * (ENOUGH + 1)


def test_the_median_is_of_the_latest_steps() -> None:
    numerics = Numerics(2.0)
    assert taken(numerics, 1, [1.0] * 30) == [None] * 30
    assert taken(numerics, 31, [2.9] * REMEMBERED) == [None] * REMEMBERED
    assert taken(numerics, 31 + REMEMBERED, [4.8, 5.0]) == [None, taken(numerics, 32 + REMEMBERED, [5.0])[0]]


def test_the_losses_outlive_a_fallback_up_to_its_checkpoint() -> None:
    numerics = Numerics(2.0)
    taken(numerics, 1, [3.0] * 20)
    numerics.begin(state_at(ENOUGH), ())
    assert taken(numerics, ENOUGH + 1, [6.0]) != [None]  # it is the first step, and is seen
    numerics.begin(state_at(ENOUGH - 1), ())
    assert taken(numerics, ENOUGH, [6.0]) == [None]  # the losses of the steps from here on are not the run's any more


def test_three_steps_in_a_row_without_a_finite_gradient() -> None:
    numerics = Numerics(None)

    def found(pattern: str) -> list[bool]:
        """Of steps that were taken (.), skipped (x), or skipped as the loss scale was too high (s)."""
        return [
            numerics.fault_of(state_at(i), 3.0, kind == ".", 2.0 if kind == "s" else 1.0) is not None
            for i, kind in enumerate(pattern)
        ]

    assert found("xx.xx.ssss.sxx.xx") == [False] * 17
    assert found("x") == [True]
    numerics.begin(None, ())
    assert (found("xx"), numerics.kept) == ([False, False], {"skipped_in_a_row": {"steps": 2}})
    numerics.begin(None, ())
    assert (found("xxx"), numerics.kept != {}) == ([False, False, True], True)
    numerics.begin(replace(state_at(4), entries={"skipped_in_a_row": {"steps": 2}}), ())
    assert (found(".xx"), found("x")) == ([False] * 3, [True])
    numerics.begin(replace(state_at(4), entries={"skipped_in_a_row": {"steps": 2}}), ())
    assert found("x") == [True]


def test_a_fault_is_met_again_at_its_step(tmp_path: Path) -> None:
    written = WrittenStarts(tmp_path)
    fault = {"error": NumericalFault.__name__, "class": "input"}
    for _ in range(2):
        written.start()
        written.error(**fault)
    assert faults_met(written.run) == [7, 7]
    written.start(exit_class=None)  # it was killed before it came there
    written.start()
    written.error(step=9)  # something else
    assert faults_met(written.run) == [7, 7]
    written.start(despite_failures=True)
    assert faults_met(written.run) == []
    written.error(step=12, **fault)
    assert faults_met(written.run) == [12]
    written.start(exit_class="finished")
    assert faults_met(written.run) == []


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
        assert main([str(recipe_in(tmp_path)), *STEPS_12, SAVES]) == 0
    assert same(end_of(run), clean)
    assert (begun(run), ends(run)) == ([0, base], ["input", "finished"])
    to = f"to step-{base:09d}" if base else "to its first step, as it has no checkpoint"
    said = f"NumericalFault: the gradient was not finite in 3 steps in a row, up to step {steps[-1]}; the run falls"
    assert f"{said} back once, {to}; its traceback is in {run}/ranks/rank-00000.jsonl" in capsys.readouterr().err
    assert not (run / "faults.jsonl").exists()


@pytest.mark.slow
def test_what_comes_again_is_named_and_left_out(
    recipe_in, tmp_path: Path, clean: End, capsys: pytest.CaptureFixture[str]
) -> None:
    words, run = [str(recipe_in(tmp_path)), *STEPS_12, SAVES, "run.keep_checkpoints=9"], tmp_path / "run"
    with bad_bins():
        assert main(words) == 78
        (line,) = lines(run / "faults.jsonl")
        assert (begun(run), ends(run)) == ([0, 4], ["input", "input"])
        error = capsys.readouterr().err.splitlines()[-1]
        # Another process meets it for the third time, and need not fall back any more.
        assert main(words) == 78
        assert (begun(run), ends(run)) == ([0, 4, 4], ["input"] * 3)
        capsys.readouterr()
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
    left_out = [verify(path).trainer.entries for path in reversed(find(run / "checkpoints"))]
    assert left_out == [{}, *[{"skipped_bins": {"bins": list(BAD_BINS)}}] * 2]

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
def test_what_is_left_out_stays_out_in_what_is_advised(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, left_out = [str(recipe_in(tmp_path)), *STEPS_12, SAVES, "--allow-schedule-change"], [2, 30]
    numbers = range(4 * BINS, 7 * BINS)
    with bad_bins():
        assert main([*words, f"data.skip_bins={left_out}"]) == 78
        (line,) = lines(tmp_path / "run/faults.jsonl")
        assert line["bins"] == [number for number in numbers if number not in left_out]
        assert line["skip_bins"] == [2, *numbers]
        (advised,) = re.findall(r"data\.skip_bins=\[[\d,]+\]", capsys.readouterr().err.splitlines()[-1])
        assert main([*words, advised]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_loss_that_leaps(
    recipe_in, tmp_path: Path, times: int, clean: End, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """By weights that are damaged, once or each time; the checkpoint before the step is one step older."""
    monkeypatch.setattr("pretrain.recovery.numerical.ENOUGH", 5)  # a shorter run
    words, run = [str(recipe_in(tmp_path)), *STEPS_12, SAVES], tmp_path / "run"
    with damaged_weights(10, times):
        assert main(words) == (0 if times == 1 else 78)
    assert begun(run) == [0, 8]
    if times == 1:
        assert same(end_of(run), clean)
        return
    said = capsys.readouterr().err.splitlines()[-1]
    assert "above the median of the 9 steps before it (run.spike_nats = 2), where it was met before; lower " in said
    assert "data.skip_bins=[63,64,65,66,67,68,69], and start again with" in said
    assert "lengthen schedule.warmup, or train through it with run.spike_nats=none, or leave out" in said
    assert end_of(run).step == 8  # nothing of the step was saved


@pytest.mark.slow
def test_a_bin_that_makes_the_loss_leap_is_left_out(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretrain.recovery.numerical.ENOUGH", 5)
    words, run = [str(recipe_in(tmp_path)), *STEPS_12, SAVES], tmp_path / "run"
    with bad_labels(65):
        assert main(words) == 78
        assert main([*words, "data.skip_bins=[65]", "--allow-schedule-change"]) == 0
    assert begun(run) == [0, 8, 8]
    assert inspect(["audit", str(run)]) == 0
    assert "data.skip_bins left out 1 bin" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_a_checkpoint_among_the_skipped_steps(recipe_in, tmp_path: Path, clean: End) -> None:
    """What comes again is met at the same step; what does not has cost the steps before the checkpoint."""
    every_step = [*STEPS_12, "run.checkpoint_every=1"]
    again, once = tmp_path / "again", tmp_path / "once"
    with bad_bins():
        assert main([str(recipe_in(again)), *every_step]) == 78
    assert begun(again / "run") == [0, 6]
    assert lines(again / "run/faults.jsonl")[0]["bins"] == list(range(6 * BINS, 7 * BINS))
    with not_finite_once():
        assert main([str(recipe_in(once)), *every_step]) == 0
    assert begun(once / "run") == [0, 6]
    end = end_of(once / "run")
    assert (end.skipped_steps, end.chain, end.step) == (2, clean.chain, 12)


# On several processes -----------------------------------------------------------------------------


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_all_ranks_fall_back_at_one_step(pool: RankPool, trained: Trained, recipe_in, tmp_path: Path) -> None:
    once = recipe_in(tmp_path / "once")
    done = pool.run(2, config("ddp"), [once, *STEPS_12, SAVES], fault="not_finite_once")
    assert done.status == 0, done.output
    assert begun(tmp_path / "once/run") == [0, 4]
    assert same(end_of(tmp_path / "once/run"), trained("ddp", 2, length=STEPS_12).end)

    words, run = [recipe_in(tmp_path / "always"), *STEPS_12, SAVES], tmp_path / "always/run"
    done = pool.run(2, config("ddp"), words, fault="bad_bins")
    assert done.statuses == (78, 78), done.output
    assert (begun(run), ends(run)) == ([0, 4], ["input", "input"])
    assert all("up to step 7, where it was met before" in said for said in done.outputs)
    done = pool.run(2, config("ddp"), [*words, SKIP, "--allow-schedule-change"], fault="bad_bins")
    assert done.status == 0, done.output
    assert end_of(run).chain == trained("single", 1, [SKIP], STEPS_12).end.chain
    assert inspect(["audit", str(run)]) == 0


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_any_engine_leaves_out_the_same(engine: str, trained: Trained) -> None:
    """Under FSDP2, all ranks pass through the model together, with empty bins, too."""
    overrides = [SKIP, "data.bins_per_forward=2"]
    weights, losses = distances(trained("single", 1, [SKIP], STEPS_12), trained(engine, 2, overrides, STEPS_12))
    by_weights, by_losses = yardstick(trained, [SKIP], STEPS_12)
    assert weights <= 10 * by_weights
    assert losses <= 10 * by_losses


@pytest.mark.slow
def test_fine_tuning_falls_back_and_stops_too(pool: RankPool, tmp_path: Path) -> None:
    """It has no bins to leave out, and says nothing of them; it checkpoints the step 5, which is skipped."""
    done = pool.run(1, config("single"), [write(tmp_path)], program=fine_tuning_job.__name__, fault="bad_bins")
    assert done.status == 78, done.output
    assert (begun(tmp_path / "run"), ends(tmp_path / "run")) == ([0, 5], ["input", "input"])
    error = done.output.splitlines()[-1]
    assert (
        "up to step 7, where it was met before; lower schedule.peak_lr or lengthen schedule.warmup, and start" in error
    )
    (line,) = lines(tmp_path / "run/faults.jsonl")
    assert line["bins"] == list(range(5 * BINS, 7 * BINS))
    table = (tmp_path / "assays.csv").read_text()
    assert all(name in table for of_bin in line["sequences"] for name in of_bin)
