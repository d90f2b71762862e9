"""A process that follows a run and pushes its checkpoints: when it pushes and ends, and that no trainer notices."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from pretrain.__main__ import main as train
from pretrain.push.__main__ import main
from pretrain.push.commit import push
from pretrain.push.watch import follow
from support.forked import forked, status_of
from support.hub.client import TOKEN, api, environment, local_hub
from support.hub.faults import RESET_S, Fault
from support.hub.folders import contents, write_export
from support.hub.server import SIGNATURE, Hub
from support.inputs.written_runs import WrittenRun
from support.kept_runs import STEPS_30, Trained
from support.launching import DDP, bit_equal, end_of, lines, started, until
from support.rank_pool import RankPool
from zymogen.trainer.run.directory import RunDirectory

NAME = "lab/model"
HOUR = 3600.0
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with local_hub(tmp_path / "home") as running:
        yield running


@dataclass
class FastClock:
    """A clock that stands still except while somebody sleeps."""

    time: float = 0.0
    happens: dict[float, object] = field(default_factory=dict)
    """Time -> a function to call when it has come."""

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for at in [at for at in self.happens if at <= self.time]:
            self.happens.pop(at)()  # type: ignore[operator]

    def now(self) -> float:
        return self.time


def finished_run(root: Path, **how: object) -> RunDirectory:
    """A run of 100 steps as it ends, with small weights."""
    WrittenRun(**how).write(root)  # type: ignore[arg-type]
    write_export(root / "export")
    (root / "checkpoints/step-000000100").mkdir(parents=True)
    return RunDirectory(root)


def watch(run: RunDirectory, fast: FastClock, said: list[str], to: HfApi, **how: Any) -> bool:
    return follow(run, NAME, api=to, patience_s=2 * HOUR, now=fast.now, sleep=fast.sleep, say=said.append, **how)


def test_a_finished_run_is_pushed_once(hub: Hub, tmp_path: Path) -> None:
    run, said, fast = finished_run(tmp_path / "run"), [], FastClock()
    assert watch(run, fast, said, api(hub))
    repository = hub.repositories[NAME]
    assert repository.files == contents(run.export)
    assert repository.tags == {"step-100": repository.head.oid}
    assert [commit.summary for commit in repository.commits] == ["initial commit", "Step 100 of run"]
    assert said == [f"step 100: lab/model at commit {repository.head.oid}, 6 files sent"]
    assert not (run.root / "alerts.jsonl").exists()
    # Started again, after the card has learned something: the tag stays, the newest commit has the card.
    (run.export / "README.md").write_text("---\nlibrary_name: transformers\n---\n\nMore.\n")
    assert watch(run, fast, said, api(hub))
    assert len(repository.commits) == 3
    assert repository.tags == {"step-100": repository.commits[1].oid}
    assert fast.time == 0


def test_a_hub_that_is_down_until_the_patience_ends(hub: Hub, tmp_path: Path) -> None:
    run, said, fast = finished_run(tmp_path / "run"), [], FastClock()
    nobody = HfApi(endpoint=NOWHERE, token=True)
    assert not watch(run, fast, said, nobody)
    alerts = [json.loads(line) for line in (run.root / "alerts.jsonl").read_text().splitlines()]
    assert 20 < len(alerts) < 40  # waits of 2 s, doubled up to 5 minutes, in 2 hours
    assert {line["message"].split(" (")[0] for line in alerts} == {"lab/model: no whole answer from the hub"}
    assert 2 * HOUR < fast.time < 2 * HOUR + 60
    assert said[-1] == f"{run.root} could not be pushed for 2 hours; the same command continues"


def test_a_hub_that_returns(hub: Hub, tmp_path: Path) -> None:
    run, said = finished_run(tmp_path / "run"), []
    hub.begin(Fault("503"))
    fast = FastClock(happens={HOUR: hub.begin})
    assert watch(run, fast, said, api(hub))
    assert HOUR <= fast.time < HOUR + 330
    assert len(hub.repositories[NAME].commits) == 2


def test_a_run_that_was_killed_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    """After an hour somebody continues it; an hour and a half later it has finished."""
    run, said = finished_run(tmp_path / "run", exit=None), []

    def line(**content: object) -> None:
        with run.attempts.open("a") as file:
            file.write(json.dumps({"attempt": 1} | content) + "\n")

    fast = FastClock(happens={HOUR: lambda: line(base_step=50), 2.5 * HOUR: lambda: line(exit="finished")})
    assert watch(run, fast, said, api(hub), every=5, poll_s=60.0)
    assert 2.5 * HOUR <= fast.time < 2.5 * HOUR + 120

    other, fast = finished_run(tmp_path / "other", exit=None), FastClock()
    assert not watch(other, fast, said, api(hub), every=5, poll_s=60.0)
    assert 2 * HOUR < fast.time <= 2 * HOUR + 120
    assert said[-1].startswith(f"{other.root} has not finished, and gives no sign of life for 2 hours")


def test_a_newest_checkpoint_that_is_damaged_is_pushed_once(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said, fast = finished_run(tmp_path / "run", exit=None), [], FastClock()
    (run.checkpoints / "step-000000200").mkdir()
    monkeypatch.setattr("pretrain.push.watch.newest", lambda run: nullcontext((run.export, 100)))  # falls back to 100
    assert not watch(run, fast, said, api(hub), poll_s=60.0)
    assert sum(line.startswith("step 100:") for line in said) == 1


def test_a_finished_run_whose_checkpoints_are_gone(hub: Hub, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    (run.checkpoints / "step-000000100").rmdir()
    with pytest.raises(ValueError, match=r"no checkpoints any more; push its .*/export without --watch"):
        watch(run, FastClock(), [], api(hub))


def test_a_mistake_ends_it(hub: Hub, tmp_path: Path) -> None:
    run, said = finished_run(tmp_path / "run"), []
    push(run.export, NAME, api=api(hub))
    with pytest.raises(ValueError, match="is public, and --private was asked for"):
        watch(run, FastClock(), said, api(hub), private=True)
    assert "is public" in (run.root / "alerts.jsonl").read_text()


def test_a_hub_that_says_when(hub: Hub, tmp_path: Path) -> None:
    """It answers 429, and that its limit begins again in 7 seconds."""
    run, said, fast = finished_run(tmp_path / "run"), [], FastClock()
    hub.begin(Fault("429", times=1))
    assert watch(run, fast, said, api(hub), poll_s=0.5)
    assert RESET_S < fast.time <= RESET_S + 2


@pytest.mark.parametrize(("name", "kind"), [("killed", "commit"), ("killed late", "tag")])
def test_a_watch_that_was_killed_is_started_again(hub: Hub, tmp_path: Path, name: str, kind: str) -> None:
    run, said = finished_run(tmp_path / "run"), []
    hub.begin(Fault(name, kind=("POST", kind)))
    pid = forked(lambda: watch(run, FastClock(), said, api(hub)))
    hub.faulty.victims.put(pid)
    assert status_of(pid) == -signal.SIGKILL
    hub.begin()
    assert watch(run, FastClock(), said, api(hub))
    assert hub.sent == []
    repository = hub.repositories[NAME]
    assert (len(repository.commits), repository.tags) == (2, {"step-100": repository.head.oid})


@pytest.mark.slow
def test_each_checkpoint_of_a_run_that_trains(hub: Hub, tmp_path: Path, recipe_in) -> None:
    """Of a run that is continued twice, with the watch looking in between: exports of its checkpoints, tagged."""
    recipe = recipe_in(tmp_path / "recipe")
    run, said = RunDirectory(tmp_path / "recipe/run"), []
    lengths = [7_400, 14_700]
    words = ["--allow-schedule-change", "schedule.final_lr=1.0", "run.checkpoint_every=5"]
    assert train([str(recipe), f"schedule.total_tokens={lengths[0]}", *words]) == 0
    steps = [newest(run)]
    assert not any(TOKEN.encode() in content for content in contents(run.root).values())  # it was in the environment
    attempts = run.attempts.read_text()
    run.attempts.write_text("\n".join(line for line in attempts.splitlines() if "exit" not in line) + "\n")

    def on() -> None:
        assert train([str(recipe), f"schedule.total_tokens={lengths[1]}", *words]) == 0
        steps.append(newest(run))

    # Without a watch: the newest checkpoint, as the run has not finished.
    assert main([str(run.root), "lab/once"]) == 0
    weights = hub.repositories["lab/once"].files["model.safetensors"]
    assert weights == (run.export / "model.safetensors").read_bytes()
    fast = FastClock(happens={100.0: on})
    assert watch(run, fast, said, api(hub))
    repository = hub.repositories[NAME]
    assert list(repository.tags) == [f"step-{step}" for step in steps]
    files = repository.files
    assert files == contents(run.export)
    assert len(repository.commits) == 3
    assert sorted(path.name for path in run.root.glob(".push*")) == []


def newest(run: RunDirectory) -> int:
    return max(int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*"))


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_a_trainer_does_not_notice(
    hub: Hub, pool: RankPool, trained: Trained, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are killed, watched by a process, and continued, watched by another one too whose hub is down."""
    alone = trained("ddp", 2, (), STEPS_30)
    recipe, run = recipe_in(tmp_path / "recipe"), RunDirectory(tmp_path / "recipe/run")

    def past_a_checkpoint() -> bool:
        is_past = any(line["step"] >= 13 for line in lines(run.metrics))
        return is_past and any(run.checkpoints.glob("step-*"))  # on busy cores, it may take longer than three steps

    pool.run_and_kill(2, DDP, [recipe], past_a_checkpoint)
    words = [sys.executable, "-m", "pretrain.push", run.root, NAME, "--watch", "--poll", "0.2", "--patience", "1"]
    log, said, later = tmp_path / "log", [], [0.0]
    down = partial(
        follow,
        run,
        NAME,
        api=HfApi(endpoint=NOWHERE),
        patience_s=HOUR,
        poll_s=0.1,
        now=lambda: time.monotonic() + later[0],
        say=said.append,
    )
    for name, value in environment(hub, tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    with started(["env", "HF_HUB_OFFLINE=0", *map(str, words)], log) as watching, ThreadPoolExecutor(1) as threads:
        until(lambda: NAME in hub.repositories and bool(hub.repositories[NAME].tags), log)
        ends = threads.submit(down)
        done = pool.run(2, DDP, [recipe])
        assert done.status == 0, done.output
        assert watching.wait(100) == 0, log.read_text()
        for _ in range(1000):  # its patience begins with its first failure, which may come late on busy cores
            later[0] += 2 * HOUR
            if wait([ends], 0.1).done:
                break
        assert not ends.result(0)
    assert bit_equal(alone.end, end_of(run.root))
    repository = hub.repositories[NAME]
    assert repository.files == contents(run.export)
    assert next(iter(repository.tags)) in ("step-10", "step-20")
    # The last checkpoint may have been pushed before the run had finished, with a card without the validation.
    tagged = repository.at("step-30").files["model.safetensors"].content
    assert tagged == (run.export / "model.safetensors").read_bytes()
    alerts = lines(run.root / "alerts.jsonl")
    assert {line["message"].split(" (")[0] for line in alerts} == {"lab/model: no whole answer from the hub"}
    assert len(said) == len(alerts) + 1
    for content in (log.read_bytes(), *contents(run.root).values()):
        assert TOKEN.encode() not in content
        assert SIGNATURE.encode() not in content
