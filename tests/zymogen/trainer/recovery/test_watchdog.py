"""Ranks that are blocked by one that stands still end soon, and name it; healthy runs are never ended."""

import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from pretrain.__main__ import main
from support.chaos.campaign import Campaign
from support.forked import forked, status_of
from support.launching import lines, until
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.flags import StepFlags
from zymogen.trainer.loop import Trainer
from zymogen.trainer.recovery import watchdog
from zymogen.trainer.recovery.watchdog import BEAT_S, OVER, SILENT_S, STUCK_S, Heartbeats, Watchdog
from zymogen.trainer.run.directory import RunDirectory

WINDOW_S = 6.0


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    ("stopped", "named"),
    [
        pytest.param(
            1,
            r"rank 1 was last seen after step \d+ \(phase \w+, host \S+\) and gives no sign of life",
            marks=pytest.mark.prove,  # as test_restarts.py has it under a launcher
        ),
        (0, r"rank 0 at 127\.0\.0\.1:\d+, the host of the ranks' store, has not "),
    ],
)
def test_a_rank_that_is_stopped_is_named_and_the_run_continues(
    stopped: int, named: str, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 is the host of the store, as without torchelastic."""
    monkeypatch.setattr(watchdog, "SILENT_S", WINDOW_S)  # the ranks are forked from here
    campaign = Campaign(tmp_path / "runs", recipe_in(tmp_path), tokens=30_000)
    reference = campaign.reference("ddp", 2)
    run = tmp_path / "runs/stopped"
    log = run.with_suffix(".log")
    pids = campaign.start(run, "ddp", 2)
    until(lambda: any(line["step"] > 10 for line in lines(run / "metrics.jsonl")), log)
    os.kill(pids[stopped], signal.SIGSTOP)
    assert status_of(pids[1 - stopped]) == 71, log.read_text()
    os.kill(pids[stopped], signal.SIGKILL)
    assert status_of(pids[stopped]) == -signal.SIGKILL
    (record,) = lines(run / f"ranks/rank-{1 - stopped:05d}.jsonl")
    assert (record["class"], record["error"]) == ("peer", "Hang")
    assert re.match(named, record["message"]), record["message"]
    said = log.read_text()
    assert re.search(f"error: rank {1 - stopped} is blocked: {named}", said)
    assert "Current thread" in said
    campaign.await_end(run, campaign.start(run, "ddp", 2))
    assert re.search(f"rank {1 - stopped}: Hang: {named}", log.read_text())  # what the next start says
    assert verify(find(run / "checkpoints")[0]).manifest.files == reference.files
    assert {path.suffix for path in run.glob("ranks/*")} == {".jsonl"}


def test_a_disk_that_hangs_does_not_keep_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)
    monkeypatch.setattr(watchdog.records, "append", lambda *_: threading.Event().wait())
    monkeypatch.setattr(watchdog, "_WRITE_S", 0.2)
    monkeypatch.setattr(watchdog, "BEAT_S", 0.05)

    def ends() -> None:
        signal.alarm(30)  # else it waits for ever
        beats = Heartbeats(HashStore, 1, 2)
        Watchdog(run, 1, beats, 1, lambda: {"step": 3, "phase": "train"})._end("rank 0 is silent")

    assert status_of(forked(ends)) == 71


@pytest.mark.slow
def test_a_start_is_removed_beside_ranks_that_still_write(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    folder = run.rank_file(1).parent
    folder.mkdir()
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                (folder / str(time.monotonic_ns())).touch()

    other = threading.Thread(target=write)
    other.start()
    try:
        for _ in range(2_000):
            assert run.remove()
            assert not folder.exists()
            folder.mkdir()
    finally:
        is_over.set()
        other.join()


def test_a_step_is_logged_in_a_phase_of_its_own(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may wait for the disk there, and the others for rank 0."""
    phases: list[str] = []
    record = Trainer.record

    def observed(trainer: Any, **how: Any) -> StepFlags:
        logged = trainer.log.step
        with monkeypatch.context() as patch:
            patch.setattr(trainer.log, "step", lambda *of, **more: [phases.append(trainer.phase), logged(*of, **more)])
            flags = record(trainer, **how)
        phases.append(trainer.phase)
        if len(phases) == 4:
            raise KeyboardInterrupt  # without an export and a report
        return flags

    monkeypatch.setattr(Trainer, "record", observed)
    assert main([str(recipe_in(tmp_path)), "schedule.total_tokens=3_000"]) == 130
    assert phases == ["log", "train"] * 2


class Ranks:
    """Ranks of one store, whose time passes when it is told to."""

    def __init__(self, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.store = 1000.0, HashStore()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(watchdog, "time", clock)
        monkeypatch.setattr(watchdog, "time", clock)
        self.stands: dict[int, tuple[int, str]] = dict.fromkeys(range(number), (0, "start"))
        self.beats = {rank: Heartbeats(lambda: self.store, rank, number) for rank in range(number)}
        self.dogs = {
            rank: Watchdog(RunDirectory(folder), rank, beats, 7, lambda rank=rank: self._position(rank))
            for rank, beats in self.beats.items()
        }
        self.stopped: set[int] = set()
        self.answers = True

    def _position(self, rank: int) -> dict[str, object]:
        return dict(zip(("step", "phase"), self.stands[rank], strict=True))

    def all_at(self, step: int, phase: str = "train") -> None:
        """Let all that live stand here."""
        self.stands |= {rank: (step, phase) for rank in self.stands if rank not in self.stopped}

    def after(self, seconds: float) -> dict[int, str]:
        """The first finding of each rank in so many seconds in which no main thread moves."""
        findings: dict[int, str] = {}
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for rank in self.stands.keys() - self.stopped:
                if self.answers and self.now % BEAT_S == 0:
                    self.beats[rank].exchange(self.dogs[rank].heartbeat)
                if finding := self.dogs[rank].check():
                    self.dogs[rank]._finding = findings.setdefault(rank, finding)
        return findings

    def take(self, steps: int, seconds: float) -> dict[int, str]:
        """Take steps of so many seconds."""
        found: dict[int, str] = {}
        for _ in range(steps):
            self.all_at(self.stands[min(self.stands.keys() - self.stopped)][0] + 1)
            found |= self.after(seconds)
        return found


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(3, tmp_path, monkeypatch)


def first_compile(ranks: Ranks, draw: random.Random) -> dict[int, str]:
    ranks.all_at(0)
    found = ranks.after(90)
    return found | ranks.take(draw.randrange(3), 0.5) | ranks.take(1, 90)  # and a layer that is compiled again


def slow_step(ranks: Ranks, draw: random.Random) -> dict[int, str]:
    found = ranks.take(draw.randrange(2, 40), 0.5)
    return found | ranks.take(1, 45) | ranks.take(draw.randrange(5), 0.5) | ranks.take(1, 45)


def busy_storage(ranks: Ranks, draw: random.Random) -> dict[int, str]:
    found = ranks.take(draw.randrange(2, 20), 0.5)
    waits = draw.randrange(len(ranks.stands))
    phase = draw.choice(("checkpoint", "load", "export", "validate", "log" if waits == 0 else "checkpoint"))
    step, _ = ranks.stands[waits]
    if phase in ("export", "validate"):
        ranks.all_at(step, phase)
    ranks.stands[waits] = step, phase
    return found | ranks.after(120)


@pytest.mark.parametrize("healthy", [first_compile, slow_step, busy_storage])
def test_a_healthy_run_is_not_ended_and_a_stopped_rank_is_named(
    healthy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 runs by a scaled clock, each of which ends with a rank that is stopped in some phase."""
    for seed in range(50):
        draw = random.Random(seed)
        ranks = Ranks(draw.choice((2, 3)), tmp_path, monkeypatch)
        assert ranks.after(draw.randrange(60)) == {}
        assert healthy(ranks, draw) == {}, seed
        assert ranks.take(3, draw.choice((0.5, 2.0, 20.0))) == {}, seed
        ranks.all_at(ranks.stands[0][0], draw.choice(("load", "train", "checkpoint", "validate", "export", "log")))
        stopped = draw.randrange(len(ranks.stands))
        ranks.stopped.add(stopped)
        found = ranks.after(SILENT_S + 5)
        assert found.keys() == ranks.stands.keys() - {stopped}, seed
        assert {text.partition(" was last seen after step ")[0] for text in found.values()} == {f"rank {stopped}"}


def test_ranks_that_live_and_take_no_step_are_stuck(ranks: Ranks) -> None:
    ranks.take(3, 0.5)
    ranks.stands[1] = ranks.stands[0][0], "load"
    assert ranks.after(STUCK_S - 5) == {}
    found = ranks.after(10)
    assert found.keys() == {0, 1, 2}
    assert re.match(
        r"rank 1 was last seen after step 3 \(phase load, host \S+\), no rank after an earlier one, and none has "
        "taken a step for 30",
        found[0],
    )
    assert len(set(found.values())) == 1


def test_one_slow_step_does_not_widen_the_window(ranks: Ranks) -> None:
    ranks.take(9, 0.5)
    ranks.take(1, 100)
    ranks.take(2, 0.5)
    assert ranks.after(STUCK_S + 5).keys() == {0, 1, 2}


@pytest.mark.parametrize("phase", ["log", "checkpoint", "validate"])
def test_time_in_another_phase_does_not_count_as_a_step(ranks: Ranks, phase: str) -> None:
    """Rank 0 writes a line, or a rank a checkpoint, for ten minutes; then all train."""
    ranks.take(5, 0.5)
    ranks.stands[0 if phase == "log" else 1] = ranks.stands[0][0], phase
    assert ranks.after(600) == {}
    ranks.all_at(ranks.stands[0][0])
    assert ranks.after(STUCK_S - 5) == {}
    assert max(ranks.dogs[0]._steps) < 1


def test_a_process_that_stood_still_itself_begins_to_wait_again(ranks: Ranks) -> None:
    ranks.take(3, 1)
    ranks.now += 3600
    assert ranks.after(SILENT_S - 5) == {}
    ranks.stopped.add(0)
    assert ranks.after(SILENT_S + 5).keys() == {1, 2}


@pytest.mark.parametrize(("agent", "host"), [("True", "the launcher of the first node"), ("False", "rank 0")])
def test_a_store_that_does_not_answer_is_named_by_ranks_that_are_blocked(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, agent: str, host: str
) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": agent}.items():
        monkeypatch.setenv(name, value)
    ranks.take(3, 1)
    ranks.answers = False
    assert ranks.take(100, 1) == {}  # who trains needs no store
    found = ranks.after(SILENT_S + 5)
    assert found.keys() == {0, 1, 2}
    assert {text.split(", ")[0] for text in found.values()} == {f"{host} at 10.0.0.1:29500"}


@pytest.mark.parametrize("ended", [0, 1])
def test_a_rank_that_has_ended_in_order_is_not_waited_for(ranks: Ranks, ended: int) -> None:
    ranks.take(3, 1)
    ranks.all_at(3, "export")
    ranks.dogs[ended].phase = OVER
    ranks.after(2)
    ranks.stopped.add(ended)
    assert ranks.after(10 * SILENT_S) == {}


@pytest.mark.parametrize("number", [8, 64, 1024])
def test_heartbeats_are_two_messages_a_rank_and_open_no_file(number: int) -> None:
    kept, calls, opened = HashStore(), Counter[str](), []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            calls[name] += 1
            return getattr(kept, name)

    def observed(event: str, arguments: tuple[Any, ...]) -> None:
        if counts and event == "open":
            opened.append(arguments)

    counts = False
    sys.addaudithook(observed)
    ranks = [Heartbeats(Counted, rank, number) for rank in range(number)]
    for _ in range(3):
        for rank in ranks:
            rank.exchange(watchdog.Heartbeat(step=1, phase="train"))
        counts, beat = True, dict(calls)
        calls.clear()
    counts = False
    assert sum(beat.values()) == 2 * number
    assert beat == {"set": number, "multi_get": 1, "compare_set": number - 1}
    assert opened == []
    assert {last.step for last, _ in ranks[0].seen.values()} == {1}
    assert [len(rank.seen) for rank in ranks[:3]] == [number - 1, 1, 1]
