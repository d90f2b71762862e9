"""A run whose starts repeat a failure is not started once more, until somebody asks for it by name."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.inputs.written_runs import WrittenStarts
from support.jobs.numerical_faults import bad_labels, number_of
from support.kept_runs import STEPS_12
from support.launching import DDP, lines
from support.object_store.server import S3Server
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.processes.errors import RollbackError
from zymogen.trainer.recovery.restart_limit import IDLE, SAME, require_progress
from zymogen.trainer.run import attempts as attempts_module
from zymogen.trainer.step import train_step


def refusal(written: WrittenStarts) -> str | None:
    """Why the next start is refused; whether it would be is the same where somebody asks for it."""
    try:
        assert require_progress(*written.known, despite_failures=False) is False
    except ValueError as error:
        assert require_progress(*written.known, despite_failures=True) is True
        return str(error)
    assert require_progress(*written.known, despite_failures=True) is False
    return None


@pytest.fixture
def written(tmp_path: Path) -> WrittenStarts:
    return WrittenStarts(tmp_path)


def test_the_same_error_at_the_same_step(written: WrittenStarts, tmp_path: Path) -> None:
    assert refusal(written) is None
    written.failed(SAME - 1)
    assert refusal(written) is None
    written.failed(1)
    assert refusal(written) == (
        f"{tmp_path}: the last 3 starts ended at step 7 by the same error: rank 0: RuntimeError: no kernel at 0x3; its "
        f"traceback is in {tmp_path}/ranks/rank-00000.jsonl; another start would most likely end like these: mend the "
        "cause, then start with --despite-failures, which counts from there, or choose another run.directory"
    )


def test_a_checkpoint_made_meanwhile_does_not_hide_it(written: WrittenStarts) -> None:
    """The step is the same: what was saved before it does not lead past it."""
    written.start()
    written.error()
    written.saved(5)
    for _ in range(2):
        written.start(base_step=5)
        written.error()
    assert "the last 3 starts" in (refusal(written) or "")


@pytest.mark.parametrize(
    "changed",
    [
        {"step": 8},
        {"error": "IndexError"},
        {"class": "peer"},
        {"message": "[gloo/transport/tcp/pair.cc:1]"},
        {"place": "zymogen/trainer/step.py:2"},
    ],
)
def test_another_error_or_step_or_victims_are_no_loop(written: WrittenStarts, changed: dict[str, Any]) -> None:
    written.failed(2)
    written.start()
    written.error(**changed)
    assert refusal(written) is None


@pytest.mark.parametrize("exit_class", [None, "stopped by SIGTERM at step 7", "interrupted"])
def test_ends_without_an_error_are_no_loop_of_three(written: WrittenStarts, exit_class: str | None) -> None:
    for _ in range(IDLE - 1):
        written.start(exit_class=exit_class)
    assert refusal(written) is None
    written.start(exit_class=exit_class)
    assert (refusal(written) or "").startswith(
        f"{written.run.root}: the last 10 starts made no checkpoint (10 x {exit_class or 'killed'})"
    )


def test_the_first_error_of_all_ranks_is_the_cause(written: WrittenStarts) -> None:
    """Also where rank 0 was killed, or ended as a consequence."""
    for number in range(SAME):
        written.start(exit_class=None if number else "error")
        written.error(rank=0, at="12:01", error="DistBackendError", message="Connection closed by peer")
        written.error(rank=1, at="12:02", step=9, error="KeyError")
        written.error(rank=2, at="12:00", error="IndexError", message="out of range\nof the second dimension")
    assert [start.cause and start.cause.rank for start in written.known[1]] == [2, 2, 2]
    said = refusal(written) or ""
    assert "by the same error: rank 2: IndexError: out of range; its traceback is in" in said
    assert "ranks/rank-00002.jsonl" in said


@pytest.mark.parametrize("exit_class", ["input", "storage"])
def test_mistakes_found_before_the_training_are_mended_outside(written: WrittenStarts, exit_class: str) -> None:
    written.failed(SAME, exit_class=exit_class, phase="start")
    assert refusal(written) is None
    written.failed(SAME, exit_class=exit_class)  # it diverges, or its saves fail: hours into the start
    assert "the last 3 starts" in (refusal(written) or "")


def test_starts_without_a_checkpoint(written: WrittenStarts) -> None:
    written.saved(5)
    written.start(base_step=0, exit_class=None)  # it made step 5
    for _ in range(IDLE - 1):
        written.start(base_step=5, exit_class=None)
    assert refusal(written) is None
    written.start(base_step=5)
    written.error(step=6)
    assert refusal(written) == (
        f"{written.run.root}: the last 10 starts made no checkpoint (9 x killed, 1 x error; the last error: rank "
        "0: RuntimeError: no kernel at 0xb); another start would most likely end like these: mend the cause, then "
        "start with --despite-failures, which counts from there, or choose another run.directory"
    )
    written.saved(6)
    assert refusal(written) is None


@pytest.mark.parametrize("kind", ["asked for", "finished"])
def test_counting_begins_again(written: WrittenStarts, kind: str) -> None:
    written.failed(SAME)
    if kind == "finished":
        written.start(exit_class="finished")
    else:
        written.start(despite_failures=True)
        written.error()
        assert refusal(written) is None
        written.failed(1)
        assert refusal(written) is None
        written.failed(1)
        assert refusal(written) is not None
        return
    written.failed(SAME - 1)
    assert refusal(written) is None


# Through the command ------------------------------------------------------------------------------


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_an_error_of_one_rank_stops_after_three_starts(pool: RankPool, recipe_in, tmp_path: Path) -> None:
    words = [str(recipe_in(tmp_path)), *STEPS_12]
    for _ in range(SAME):
        assert pool.run(2, DDP, words, fault="fails_on_rank_1").status != 0
    refused = pool.run(2, DDP, words)
    assert refused.statuses == (78, 71), refused.output  # rank 1 ends because rank 0 does
    assert "the last 3 starts ended at step 3 by the same error: rank 1: KeyError: 'missing'; " in refused.outputs[0]
    assert pool.run(2, DDP, [*words, "--despite-failures"]).status == 0


# On disks that have nothing of the run -----------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


def started_on_new_disks(recipe: Path, url: str, *more: str) -> int:
    """The exit status of a start on a machine that has nothing of the run."""
    gc.collect()
    shutil.rmtree(recipe.parent / "run", ignore_errors=True)
    return main([str(recipe), *STEPS_12, "run.checkpoint_every=4", f"run.checkpoint_url={url}", *more])


@pytest.mark.slow
@pytest.mark.parametrize(("every", "base"), [(4, 4), (100, 0)])
def test_a_deterministic_error_is_refused_on_a_new_disk(
    recipe_in, server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture, every: int, base: int
) -> None:
    """Two steps after the checkpoint, or before the first one, where the store has nothing but claims."""
    recipe, url, run = recipe_in(tmp_path), server.new_url(), tmp_path / "run"
    words = [f"run.checkpoint_every={every}"]

    def failing(step: Any, *arguments: Any, **how: Any) -> Any:
        if number_of(step) == 6:
            raise RuntimeError("a kernel that this machine does not have")
        return train_step(step, *arguments, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zymogen.trainer.loop, "train_step", failing)
        assert [started_on_new_disks(recipe, url, *words) for _ in range(3)] == [70, 70, 70]
        attempts = lines(run / "attempts.jsonl")
        assert [(line["attempt"], line.get("base_step", line.get("exit"))) for line in attempts] == [
            *((1, 0), (1, "error"), (2, base), (2, "error"), (3, base), (3, "error"))
        ]
        capsys.readouterr()
        assert [started_on_new_disks(recipe, url, *words) for _ in range(3)] == [78, 78, 78]
    assert capsys.readouterr().err.count("the last 3 starts ended at step 5 by the same error: rank 0: Runtime") == 3
    assert not run.exists()  # a refusal is no start
    assert started_on_new_disks(recipe, url, *words, "--despite-failures") == 0
    (last, _) = lines(run / "attempts.jsonl")[-2:]
    assert (last["attempt"], last["base_step"], last["despite_failures"]) == (4, base, True)
    assert started_on_new_disks(recipe, url, *words) == 0  # what finished is not counted, anywhere


@pytest.mark.slow
def test_a_numerical_fault_stops_the_run_on_every_disk(
    recipe_in, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("zymogen.trainer.recovery.loss_monitor.ENOUGH", 5)  # a shorter run
    recipe, url = recipe_in(tmp_path), server.new_url()
    with bad_labels(65):
        with pytest.raises(RollbackError, match="rolls back once, to step-000000008"):
            started_on_new_disks(recipe, url)
        assert started_on_new_disks(recipe, url) == 78
        assert "where it was met before" in capsys.readouterr().err
        assert started_on_new_disks(recipe, url, "--despite-failures") == 78
        assert "the numerical fault at step 10, which stopped attempt 2, would come again" in capsys.readouterr().err
        assert started_on_new_disks(recipe, url, "data.skip_bins=[65]", "--allow-schedule-change") == 0
    assert [line["step"] for line in lines(tmp_path / "run/faults.jsonl")] == [10]


@pytest.mark.parametrize(
    ("file", "place"),
    [("zymogen/trainer/new.py", "trainer/new.py:2"), ("pretrain/new.py", "pretrain/new.py:2"), ("torch/new.py", "")],
)
def test_where_an_error_was_raised_is_known_of_an_installed_program(
    file: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempts_module._CODE == ROOT
    installed = tmp_path / "lib/site-packages"
    monkeypatch.setattr(attempts_module, "_CODE", installed)
    names: dict[str, Any] = {}
    exec(compile("def fail():\n    raise KeyError('x')\n", str(installed / file), "exec"), names)
    with pytest.raises(KeyError) as raised:
        names["fail"]()
    assert attempts_module._place(raised.value.with_traceback(raised.tb.tb_next)) == place
