"""Runs whose machine is gone: the same command continues on another one, from what an object store holds."""

import errno
import gc
import gzip
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.chaos.campaign import Campaign
from support.jobs import best_job
from support.kept_runs import CONSTANT, STEPS_12
from support.launching import End, bit_equal, end_of, lines, until
from support.object_store.server import S3Server
from zymogen.processes.signals import Interrupted
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.object_store.bucket import RECORDS_FILE, CheckpointBucket

pytestmark = pytest.mark.slow  # each starts the program several times beside an object store


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def reference(recipe_in, tmp_path: Path) -> End:
    """The end of a run that nothing happened to."""
    assert main([str(recipe_in(tmp_path / "reference")), *STEPS_12]) == 0
    return end_of(tmp_path / "reference/run")


def start(recipe: Path, url: str, *more: str) -> int:
    return main([str(recipe), *STEPS_12, "run.checkpoint_every=4", f"run.checkpoint_url={url}", *more])


def test_a_run_continues_where_it_never_was(
    recipe_in, reference: End, server: S3Server, signalled_at, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe, url, run = recipe_in(tmp_path), server.new_url(), tmp_path / "run"
    signalled_at(5)
    assert start(recipe, url) == 75
    before = lines(run / "metrics.jsonl")
    shutil.rmtree(run)
    assert start(recipe, url) == 0
    assert f"fetched: {url}/step-000000005-a1-00000002 -> {run}/checkpoints/step-000000005\n" in capsys.readouterr().err
    end = end_of(run)
    assert (end.step, end.chain, end.tokens_seen) == (reference.step, reference.chain, reference.tokens_seen)
    assert bit_equal(end, reference)
    starts = [line for line in lines(run / "attempts.jsonl") if "base_step" in line]
    assert [(line["attempt"], line["base_step"]) for line in starts] == [(1, 0), (2, 5)]
    steps = [line["step"] for line in lines(run / "metrics.jsonl") if "loss" in line]
    assert steps == sorted(set(steps))  # of both machines
    assert [line["step"] for line in before if "loss" in line][:3] == steps[:3]
    # What it kept is what the store keeps, and the finished run is not trained once more.
    kept = [verify(path).manifest for path in find(run / "checkpoints")]
    assert [(each.attempt, each.step) for each in kept] == [each[:2] for each in CheckpointBucket(url).saves()]
    shutil.rmtree(run)
    assert start(recipe, url) == 0
    assert end_of(run).step == 12
    assert lines(run / "attempts.jsonl")[-2]["base_step"] == 12


def test_another_run_is_refused(recipe_in, server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    recipe, url, run = recipe_in(tmp_path), server.new_url(), tmp_path / "run"
    assert start(recipe, url) == 0
    assert start(recipe, url, "run.directory=other", "run.seed=5") == 78
    assert "run.seed was 0, is 5" in capsys.readouterr().err
    assert not Path("other").exists()
    # A directory that missed starts of another machine is not that run's newest any more.
    os.rename(run, tmp_path / "earlier")
    assert start(recipe, url, "--allow-schedule-change", "schedule.total_tokens=10_000") == 0
    os.rename(run, tmp_path / "later")
    os.rename(tmp_path / "earlier", run)
    assert start(recipe, url, "--allow-schedule-change", "schedule.total_tokens=12_000") == 78
    said = capsys.readouterr().err
    assert f"{run} knows 1 starts of the run, and {url} has a checkpoint of start 2" in said


def test_a_store_that_does_not_answer_is_a_disk_that_does_not(
    recipe_in, reference: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    recipe, run = recipe_in(tmp_path), tmp_path / "run"
    with S3Server() as server:
        url, train_step, calls = server.new_url(), zymogen.trainer.loop.train_step, [0]

        def unplugging(*arguments, **how):
            calls[0] += 1
            if calls[0] == 6:
                until(
                    lambda: len(CheckpointBucket(url).saves()) == 1 and CheckpointBucket(url).saves()[0].is_whole,
                    recipe,
                )
                server.stop()
            if calls[0] == 9:
                for thread in threading.enumerate():
                    if thread.name == "checkpoint":  # of the save of step 8, which fails
                        thread.join(60)
            if calls[0] == 10:
                server.start()
            return train_step(*arguments, **how)

        monkeypatch.setattr(zymogen.trainer.loop, "train_step", unplugging)
        assert start(recipe, url) == 0
        assert "save failed: step 8 was not saved: " in capsys.readouterr().err
        assert bit_equal(end_of(run), reference)
        assert [each.step for each in CheckpointBucket(url).saves()] == [12, 4]
        server.stop()
        assert start(recipe, url, "--allow-schedule-change", "schedule.total_tokens=10_000") == 74
        assert f"error: {url}: EndpointConnectionError: Could not connect" in capsys.readouterr().err
        assert len(lines(run / "attempts.jsonl")) == 2


# The best checkpoint ------------------------------------------------------------------------------


def selecting(recipe: Path, url: str) -> None:
    """A run that validates at each second step, is best at step 12, and ends at step 16, as two were no better."""
    settings = ("schedule.total_tokens=11_800", "schedule.peak_lr=2e-2", CONSTANT, "run.evaluate_every=2")
    keeps = ("run.checkpoint_every=5", "run.keep_checkpoints=1", f"run.checkpoint_url={url}")
    try:
        assert best_job.main([str(recipe), *settings, *keeps, "wait=2"]) == 0
    finally:
        gc.collect()  # the lock of a start that failed: its process would have ended


def content(run: Path) -> dict[str, bytes]:
    """All that the checkpoints and the export hold but who wrote them when."""
    files = [file for folder in ("checkpoints/step-*", "export") for file in run.glob(f"{folder}/**/*")]
    kept = [file for file in files if file.is_file() and file.name != "manifest.json"]
    return {str(file.relative_to(run)): file.read_bytes() for file in kept}


def stored_steps(url: str) -> list[int]:
    return [saved.step for saved in CheckpointBucket(url).saves() if saved.is_whole]


class Finished(NamedTuple):
    """A run that selects a checkpoint, and that nothing happened to."""

    run: Path
    url: str
    content: dict[str, bytes]


@pytest.fixture(scope="module")
def finished(recipe_in, server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    recipe, url = recipe_in(tmp_path_factory.mktemp("best")), server.new_url()
    selecting(recipe, url)
    return Finished(recipe.parent / "run", url, content(recipe.parent / "run"))


def test_the_best_checkpoint_is_fetched_with_the_newest(
    finished: Finished, recipe_in, server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe, url, run = recipe_in(tmp_path), server.new_url(), tmp_path / "run"
    evaluate, calls = best_job.BestJob.evaluate, [0]

    def signalling(self: best_job.BestJob, model: Any) -> Any:
        calls[0] += 1
        if calls[0] == 7:  # that of step 14
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_job.BestJob, "evaluate", signalling)
        with pytest.raises(Interrupted):
            selecting(recipe, url)
    assert stored_steps(url) == [14, 12]
    shutil.rmtree(run)
    selecting(recipe, url)
    assert f"fetched: {url}/step-000000012-a1-" in capsys.readouterr().err
    assert content(run) == finished.content
    assert finished.content["export/best"] == b"step-000000012"
    best = json.loads((run / "checkpoints/step-000000016/trainer.json").read_text())["entries"]["best"]
    assert (best["step"], best["since"]) == (12, 2)
    assert stored_steps(url) == [16, 12]


def test_a_start_that_another_machine_forestalled_leaves_no_line(
    recipe_in, server: S3Server, signalled_at, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A line of a start that another machine made would say that this directory has the records of it."""
    recipe, url, run = recipe_in(tmp_path), server.new_url(), tmp_path / "run"
    signalled_at(5)
    assert start(recipe, url) == 75
    bucket, before = CheckpointBucket(url), (run / "attempts.jsonl").read_bytes()
    bucket.claim(2)  # by a start that was killed before it wrote its line
    claim = CheckpointBucket.claim

    def forestalled(self: CheckpointBucket, attempt: int) -> None:
        self._objects.write("attempts/000003", b"another machine\n")
        claim(self, attempt)

    def silent(self: CheckpointBucket, attempt: int) -> None:
        raise OSError(errno.EIO, f"{url}: no answer")

    for fault, status, said in (
        (forestalled, 70, "another start of the run has the number 3, too"),
        (silent, 74, "no answer"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CheckpointBucket, "claim", fault)
            assert start(recipe, url) == status
        gc.collect()  # the lock of a start that failed: its process would have ended
        assert said in capsys.readouterr().err
        assert (run / "attempts.jsonl").read_bytes() == before

    own = bucket.saves()[0]
    theirs = own.prefix.replace("-a1-", "-a3-")
    for name in own.names:
        bucket._objects.write(f"{theirs}/{name}", bucket._objects.read(f"{own.prefix}/{name}"))
    assert start(recipe, url) == 78
    gc.collect()
    assert f"{run} knows 1 starts of the run, and {url} has a checkpoint of start 3" in capsys.readouterr().err
    assert (run / "attempts.jsonl").read_bytes() == before

    bucket._objects.remove(f"{theirs}/{name}" for name in own.names)
    assert start(recipe, url) == 0
    starts = [line for line in lines(run / "attempts.jsonl") if "base_step" in line]
    assert [(line["attempt"], line["base_step"]) for line in starts] == [(1, 0), (4, 5)]  # numbers only grow


def test_a_checkpoint_that_comes_while_a_start_looks_is_continued(
    recipe_in, reference: End, server: S3Server, signalled_at, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last save of a machine that is about to go: its replacement has listed and fetched the one before it."""
    recipe, url, run = recipe_in(tmp_path), server.new_url(), tmp_path / "run"
    signalled_at(5)
    assert start(recipe, url) == 75
    bucket = CheckpointBucket(url)
    last, first = bucket.saves()
    assert (last.step, first.step) == (5, 4)
    kept = {f"{last.prefix}/{name}": bucket._objects.read(f"{last.prefix}/{name}") for name in last.names}
    bucket._objects.remove(kept)
    records = bucket.records(first)  # as they are where the save of a step ends before the next step
    records["metrics.jsonl"] = "".join(
        line for line in records["metrics.jsonl"].splitlines(keepends=True) if json.loads(line)["step"] <= first.step
    )
    bucket._objects.write(f"{first.prefix}/{RECORDS_FILE}", gzip.compress(json.dumps(records).encode()))
    shutil.rmtree(run)
    claim = CheckpointBucket.claim

    def after_it_came(self: CheckpointBucket, attempt: int) -> None:
        assert [path.name for path in find(run / "checkpoints")] == ["step-000000004"]
        for name, content in kept.items():
            self._objects.write(name, content)
        claim(self, attempt)

    monkeypatch.setattr(CheckpointBucket, "claim", after_it_came)
    assert start(recipe, url) == 0
    assert bit_equal(end_of(run), reference)
    starts = [line for line in lines(run / "attempts.jsonl") if "base_step" in line]
    assert [(line["attempt"], line["base_step"]) for line in starts] == [(1, 0), (2, 5)]
    steps = [line["step"] for line in lines(run / "metrics.jsonl") if "loss" in line]
    assert steps[:5] == [1, 2, 3, 4, 5]  # the records that came with it, not those of step 4


def saves_told(run: Path) -> int:
    return len([line for line in lines(run / "metrics.jsonl") if "checkpoint_s" in line])


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_two_ranks_that_are_killed_continue_in_a_new_directory(recipe_in, server: S3Server, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    campaign = Campaign(tmp_path / "runs", recipe, tokens=40_000)
    reference = campaign.reference("ddp", 2)
    recipe.write_text(recipe.read_text().replace("[run]", f'[run]\ncheckpoint_url = "{server.new_url()}"'))
    run = tmp_path / "runs/elsewhere"
    for kills in range(4):
        pids = campaign.start(run, "ddp", 2)
        if kills < 3:
            until(lambda count=2 * kills + 2: saves_told(run) >= count, run.with_suffix(".log"), 60)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            shutil.rmtree(run)
    campaign.await_end(run, pids)
    bases = [line["base_step"] for line in lines(run / "attempts.jsonl") if "base_step" in line]
    assert len(bases) == 4
    assert bases == sorted(set(bases))
    assert verify(find(run / "checkpoints")[0]).manifest.files == reference.files
