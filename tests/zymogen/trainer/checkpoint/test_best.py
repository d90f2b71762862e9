"""The best checkpoint: kept past the newest ones, found after any end, and when no better one comes, training ends."""

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.checkpoint_run import build, flip, save, train, trainer_at
from support.jobs import best_job
from support.jobs.best_job import BestJob
from support.kept_runs import CONSTANT, config
from support.launching import lines
from support.rank_pool import RankPool
from zymogen.processes.signals import Interrupted
from zymogen.trainer.checkpoint.best import BestCheckpoint, best_valid, drop_if_missing
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.load import find
from zymogen.trainer.engine.named_state import TorchState

# At this rate the score jumps up and down, and its minimum is not at the end.
SETTINGS = ("schedule.peak_lr=2e-2", CONSTANT, "run.evaluate_every=2", "run.checkpoint_every=5")
ALL_17 = ("schedule.total_tokens=11_800", *SETTINGS)


def test_only_a_lower_and_finite_score_is_better() -> None:
    best, trace = BestCheckpoint(), []
    for step, score in enumerate((math.nan, 3.0, 3.0, math.inf, 2, -math.inf, 2.5), start=1):
        best = best.after(step, score)
        trace.append((best.score, best.step, best.since, best.validated))
    assert trace == [
        *((None, 0, 1, 1), (3.0, 2, 0, 2), (3.0, 2, 1, 3), (3.0, 2, 2, 4)),
        *((2.0, 5, 0, 5), (2.0, 5, 1, 6), (2.0, 5, 2, 7)),
    ]


def test_an_entry_is_read_as_it_was_written() -> None:
    best = BestCheckpoint(score=0.1, step=12, since=2, validated=16)
    trainer = trainer_at(16)
    assert BestCheckpoint.of(trainer) == BestCheckpoint()
    trainer.entries["best"] = asdict(best)  # type: ignore[index]
    assert BestCheckpoint.of(trainer) == best
    trainer.entries["best"] = {**asdict(best), "since": "2"}  # type: ignore[index]
    with pytest.raises(InvalidCheckpointError, match=r"trainer\.entries\.best: since: .*, got '2'"):
        BestCheckpoint.of(trainer)


def test_a_best_checkpoint_that_is_damaged_is_forgotten_and_never_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 3)
    path = save(tmp_path, TorchState(model, optimizer), 3)
    best = BestCheckpoint(score=0.5, step=3, since=4, validated=9)
    assert drop_if_missing(best, tmp_path) == best
    with pytest.raises(FloatingPointError, match="no validation of this run had a score that is a finite number"):
        best_valid(tmp_path)
    flip(path / "model/00000.safetensors", 100)
    assert drop_if_missing(best, tmp_path) == BestCheckpoint(score=None, step=0, since=4, validated=9)
    assert "the best checkpoint is not whole, and is forgotten" in capsys.readouterr().err


# Whole runs ---------------------------------------------------------------------------------------


def started(recipe: Path, *more: str) -> None:
    assert best_job.main([str(recipe), *ALL_17, "wait=2", *more]) == 0


def scores(run: Path) -> dict[int, float]:
    """Squared error of each validated step, as last logged."""
    metrics = lines(run / "metrics.jsonl")
    return {line["step"]: line["validation"]["length"]["squared_error"] for line in metrics if "validation" in line}


def content(run: Path) -> dict[str, bytes]:
    """All that the checkpoints hold but who wrote them when."""
    files = [file for path in find(run / "checkpoints") for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(run)): file.read_bytes() for file in files if file.name != "manifest.json"}


def kept(run: Path) -> list[int]:
    return [int(path.name[5:]) for path in find(run / "checkpoints")][::-1]


class Whole(NamedTuple):
    """A run that ends before its last token, as two validations were no better."""

    run: Path
    content: dict[str, bytes]


@pytest.fixture(scope="module")
def whole(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    recipe = recipe_in(tmp_path_factory.mktemp("best"))
    started(recipe)
    return Whole(recipe.parent / "run", content(recipe.parent / "run"))


@pytest.mark.slow
def test_the_best_outlives_the_newest_and_training_ends_without_a_better_one(whole: Whole) -> None:
    run, found = whole.run, scores(whole.run)
    assert list(found) == [2, 4, 6, 8, 10, 12, 14, 16]
    assert min(found, key=found.__getitem__) == 12  # and after 6 and 10, which were worse, a better one came
    assert found[6] > found[4]
    assert kept(run) == [12, 15, 16]  # the newest two, and the best
    best = best_valid(run / "checkpoints")
    assert (best.trainer.step, BestCheckpoint.of(best.trainer)) == (
        12,
        BestCheckpoint(score=found[12], step=12, validated=12),
    )
    assert (run / "export/best").read_text() == "step-000000012"
    trainer = json.loads((run / "checkpoints/step-000000016/trainer.json").read_text())
    assert trainer["entries"]["best"] == {"score": found[12], "step": 12, "since": 2, "validated": 16}
    assert trainer["tokens_seen"] < 11_800


def test_a_second_start_says_that_it_is_finished(whole: Whole, capfd: pytest.CaptureFixture[str]) -> None:
    started(whole.run.parent / "recipe.toml")
    assert f"{whole.run} has finished at step 16: nothing is left to train" in capfd.readouterr().err
    assert content(whole.run) == whole.content
    assert (whole.run / "export/best").read_text() == "step-000000012"


@pytest.mark.slow
def test_with_more_patience_it_is_continued(whole: Whole, recipe_in, tmp_path: Path) -> None:
    shutil.copytree(whole.run, tmp_path / "run")
    started(recipe_in(tmp_path), "wait=9")
    assert kept(tmp_path / "run") == [12, 16, 17]
    assert lines(tmp_path / "run/attempts.jsonl")[-2]["base_step"] == 16


Fault = Callable[[pytest.MonkeyPatch], Any]


def in_evaluation(number: int, happens: Callable[[], None]) -> Fault:
    evaluate, calls = BestJob.evaluate, iter(range(1, 100))

    def faulty(self: BestJob, model: Any) -> Any:
        if next(calls) == number:
            happens()
        return evaluate(self, model)

    return lambda patch: patch.setattr(BestJob, "evaluate", faulty)


def fails() -> None:
    raise RuntimeError("as if it was killed")


def interrupts() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "left"),
    [
        pytest.param(in_evaluation(4, fails), RuntimeError, [4, 5, 6], id="killed while it validates"),
        pytest.param(in_evaluation(4, interrupts), Interrupted, [4, 6, 8], id="stopped while it validates"),
        pytest.param(
            in_evaluation(8, interrupts), Interrupted, [12, 15, 16], id="stopped while it validates the last step"
        ),
    ],
)
def test_resumed_it_ends_with_the_same_best(
    fault: Fault, error: type[BaseException], left: list[int], whole: Whole, recipe_in, tmp_path: Path
) -> None:
    recipe, run = recipe_in(tmp_path), tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises(error):
            started(recipe)
    assert kept(run) == left
    started(recipe)
    assert content(run) == whole.content
    assert (run / "export/best").read_text() == "step-000000012"


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    "engine", ["ddp", *(pytest.param(each, marks=pytest.mark.prove) for each in ("fsdp2", "zero3"))]
)
def test_killed_on_two_ranks_it_ends_with_the_same_best(pool: RankPool, recipe_in, tmp_path: Path, engine: str) -> None:
    """All ranks end at the same step, too; one that went on would wait for the other."""
    words = [[recipe_in(tmp_path / name), *ALL_17, "wait=2"] for name in ("whole", "killed")]
    done = pool.run(2, config(engine), words[0], program=best_job.__name__)
    assert done.status == 0, done.output
    whole, run = (tmp_path / name / "run" for name in ("whole", "killed"))
    pool.run_and_kill(2, config(engine), words[1], lambda: len(scores(run)) >= 4, program=best_job.__name__)
    assert kept(run)[-1] < kept(whole)[-1]
    resumed = pool.run(2, config(engine), words[1], program=best_job.__name__)
    assert resumed.status == 0, resumed.output
    assert content(run) == content(whole)
    assert BestCheckpoint.of(best_valid(run / "checkpoints").trainer).since == 0
