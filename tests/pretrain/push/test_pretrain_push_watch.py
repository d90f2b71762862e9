"""A process that follows a run and pushes its checkpoints: when it pushes and ends, and that no trainer notices."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from safetensors.torch import load_file

from pretrain.__main__ import main as train
from pretrain.push.commit import push
from pretrain.push.failure import Clock
from pretrain.push.folder import LIST
from pretrain.push.watch import Target, Watch
from pretrain.run.directory import RunDirectory
from support.hub.client import TOKEN, api, environment, local_hub
from support.hub.faults import Fault
from support.hub.folders import contents, write_export
from support.hub.server import Hub
from support.inputs.written_runs import WrittenRun
from support.launching import bit_equal, command, end_of, started, until
from support.launching import environment as of_programs
from support.places import ROOT

NAME = "lab/model"
HOUR = 3600.0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with local_hub(tmp_path / "home") as running:
        yield running


@dataclass
class FastClock:
    """A clock that stands still except while somebody sleeps."""

    now: float = 0.0
    happens: dict[float, object] = field(default_factory=dict)
    """Time -> a function to call when it has come."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in [at for at in self.happens if at <= self.now]:
            self.happens.pop(at)()  # type: ignore[operator]

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep)


def finished_run(root: Path, **how: object) -> RunDirectory:
    """A run of 100 steps as it ends, with small weights."""
    WrittenRun(**how).write(root)  # type: ignore[arg-type]
    write_export(root / "export")
    (root / "checkpoints/step-000000100").mkdir(parents=True)
    return RunDirectory(root)


def watch(run: RunDirectory, fast: FastClock, said: list[str], to: HfApi, **how: float) -> Watch:
    return Watch(run, Target(NAME, api=to), patience_s=2 * HOUR, clock=fast.clock, say=said.append, **how)


def test_a_finished_run_is_pushed_once(hub: Hub, tmp_path: Path) -> None:
    run, said, fast = finished_run(tmp_path / "run"), [], FastClock()
    assert watch(run, fast, said, api(hub)).follow() == 0
    repository = hub.repositories[NAME]
    assert {path: content for path, content in repository.files.items() if path != LIST} == contents(run.export)
    assert repository.tags == {"step-100": repository.head.oid}
    assert [commit.summary for commit in repository.commits] == ["initial commit", "Step 100 of run"]
    assert json.loads((run.root / "pushed.json").read_text())["step"] == 100
    assert said == [f"step 100: lab/model at commit {repository.head.oid}, 7 files sent"]
    assert not (run.root / "alerts.jsonl").exists()
    # Started again, after the card has learned something: the tag stays, the newest commit has the card.
    (run.export / "README.md").write_text("---\nlibrary_name: transformers\n---\n\nMore.\n")
    assert watch(run, fast, said, api(hub)).follow() == 0
    assert len(repository.commits) == 3
    assert repository.tags == {"step-100": repository.commits[1].oid}
    assert fast.now == 0


def test_a_hub_that_is_down_until_the_patience_ends(hub: Hub, tmp_path: Path) -> None:
    run, said, fast = finished_run(tmp_path / "run"), [], FastClock()
    nobody = HfApi(endpoint="http://127.0.0.1:9", token=True)
    assert watch(run, fast, said, nobody).follow() == 1
    alerts = [json.loads(line) for line in (run.root / "alerts.jsonl").read_text().splitlines()]
    assert 20 < len(alerts) < 40  # waits of 2 s, doubled up to 5 minutes, in 2 hours
    assert {line["message"].split(" (")[0] for line in alerts} == {"lab/model: no whole answer from the hub"}
    assert 2 * HOUR < fast.now < 2 * HOUR + 60
    assert said[-1] == f"{run.root} could not be pushed for 2 hours; the same command continues"


def test_a_hub_that_returns(hub: Hub, tmp_path: Path) -> None:
    run, said = finished_run(tmp_path / "run"), []
    hub.begin(Fault("503"))
    fast = FastClock(happens={HOUR: hub.begin})
    assert watch(run, fast, said, api(hub)).follow() == 0
    assert HOUR <= fast.now < HOUR + 330
    assert len(hub.repositories[NAME].commits) == 2


def test_a_run_that_was_killed_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    """After an hour somebody continues it; an hour and a half later it has finished."""
    run, said = finished_run(tmp_path / "run", exit=None), []

    def line(**content: object) -> None:
        with run.attempts.open("a") as file:
            file.write(json.dumps({"attempt": 1} | content) + "\n")

    fast = FastClock(happens={HOUR: lambda: line(base_step=50), 2.5 * HOUR: lambda: line(exit="finished")})
    assert watch(run, fast, said, api(hub), every=5, poll_s=60.0).follow() == 0
    assert 2.5 * HOUR <= fast.now < 2.5 * HOUR + 120

    other, fast = finished_run(tmp_path / "other", exit=None), FastClock()
    assert watch(other, fast, said, api(hub), every=5, poll_s=60.0).follow() == 1
    assert 2 * HOUR < fast.now <= 2 * HOUR + 120
    assert said[-1].startswith(f"{other.root} has not finished, and gives no sign of life for 2 hours")


def test_a_mistake_ends_it(hub: Hub, tmp_path: Path) -> None:
    run, said = finished_run(tmp_path / "run"), []
    push(run.export, NAME, api=api(hub))
    following = watch(run, FastClock(), said, api(hub))
    following.target = Target(NAME, private=True, api=api(hub))
    with pytest.raises(ValueError, match="is public, and --private was asked for"):
        following.follow()
    assert "is public" in (run.root / "alerts.jsonl").read_text()


@pytest.mark.slow
def test_each_checkpoint_of_a_run_that_trains(hub: Hub, tmp_path: Path, recipe_in) -> None:
    """Of a run that is continued twice, with the watch looking in between: exports of its checkpoints, tagged."""
    recipe = recipe_in(tmp_path / "recipe")
    run, said = RunDirectory(tmp_path / "recipe/run"), []
    lengths = [7_400, 14_700]
    words = ["--allow-schedule-change", "schedule.final_lr=1.0", "run.checkpoint_every=5"]
    assert train([str(recipe), f"schedule.total_tokens={lengths[0]}", *words]) == 0
    steps = [newest(run)]
    attempts = run.attempts.read_text()
    run.attempts.write_text("\n".join(line for line in attempts.splitlines() if "exit" not in line) + "\n")

    def on() -> None:
        assert train([str(recipe), f"schedule.total_tokens={lengths[1]}", *words]) == 0
        steps.append(newest(run))

    fast = FastClock(happens={100.0: on})
    assert watch(run, fast, said, api(hub)).follow() == 0
    repository = hub.repositories[NAME]
    assert list(repository.tags) == [f"step-{step}" for step in steps]
    files = {path: content for path, content in repository.files.items() if path != LIST}
    assert files == contents(run.export)
    assert len(repository.commits) == 3
    assert sorted(path.name for path in run.root.glob(".push*")) == []


def newest(run: RunDirectory) -> int:
    return max(int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*"))


@pytest.mark.launch
def test_a_trainer_does_not_notice(hub: Hub, tmp_path: Path, recipe_in) -> None:
    """Two processes train, with a watch beside them, and with one whose hub is down: the weights are the same bits."""
    ends = {}
    for name, port in (("alone", None), ("watched", hub.url), ("down", "http://127.0.0.1:9")):
        recipe = recipe_in(tmp_path / name)
        root = tmp_path / name / "run"
        with started(command([recipe, "run.checkpoint_every=5"], 2), tmp_path / f"{name}.log") as trainer:
            if port:
                until(lambda root=root: (root / "checkpoints").exists(), tmp_path / f"{name}.log")
                words = [sys.executable, "-m", "pretrain.push", str(root), NAME, "--watch", "--poll", "0.2"]
                words += ["--patience", "0.001" if name == "down" else "1"]
                of_hub = environment(hub, tmp_path / "home") | {"HF_ENDPOINT": port}
                done = subprocess.run(
                    words, cwd=ROOT, env=of_programs() | of_hub, capture_output=True, text=True, timeout=200
                )
                assert done.returncode == (1 if name == "down" else 0), done.stderr
                assert TOKEN not in done.stdout + done.stderr
            assert trainer.wait(200) == 0
        ends[name] = end_of(root)
    assert bit_equal(ends["alone"], ends["watched"])
    assert bit_equal(ends["alone"], ends["down"])
    repository = hub.repositories[NAME]
    files = {path: content for path, content in repository.files.items() if path != LIST}
    assert files == contents(tmp_path / "watched/run/export")
    weights = load_file(tmp_path / "watched/run/export/model.safetensors")
    assert weights.keys() == load_file(tmp_path / "alone/run/export/model.safetensors").keys()
    assert (tmp_path / "down/run/alerts.jsonl").exists()
    assert not any(TOKEN.encode() in content for content in contents(tmp_path / "watched/run").values())
