"""Folds x seeds through the command: stopped anywhere and started again, they end as if nobody had stopped them.

Stopped between two members, within one, and while the end is written: scores, predictions, bundles, the page.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.assays.small_run import write
from support.kept_runs import config
from support.launching import FLOAT32, Launched, bit_equal, end_of, lines, run, started, until
from zymogen.trainer.checkpoint.best import best_valid
from zymogen.trainer.run.reader import RunReader

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

WORDS = ("split.folds=3", "split.fractions=[0.8, 0.1, 0.1]", "schedule.total_tokens=4_000")
MEMBERS = {
    1: [f"fold-{fold}" for fold in range(3)],
    2: [f"fold-{fold}-seed-{seed}" for fold in range(3) for seed in range(2)],
}
"""By the number of seeds."""


def of_affinity(folder: Path) -> Path:
    """The recipe of a run on 90 proteins with one objective, whose end takes seconds."""
    path = write(folder, count=90)
    text = path.read_text()
    first, after = text.index('[[tasks]]\nname = "binds"'), text.index("[split]")
    path.write_text(text[:first] + text[after:])
    return path


def command(folder: Path, processes: int, seeds: int) -> list[str]:
    words = ["-m", "finetune", str(of_affinity(folder)), *WORDS, f"run.seeds={seeds}"]
    if processes == 1:
        return [sys.executable, *words]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(config("ddp")), "--num_processes", "2"]
    return [sys.executable, *launcher, *FLOAT32, *words]


def started_and_ended(words: list[str], folder: Path, when: Callable[[Path], bool], by: signal.Signals) -> str:
    """What a start says that gets a signal as soon as something holds of its run directory."""
    log = folder / "log"
    with started(words, log) as process:
        until(lambda: process.poll() is not None or when(folder / "run"), log)
        assert process.poll() is None, f"ended before it was stopped:\n{log.read_text()}"
        os.killpg(process.pid, by)
        process.wait(60)
    return log.read_text()


def has_finished(root: Path, member: str) -> bool:
    return any(line.get("exit") == "finished" for line in lines(root / member / "attempts.jsonl"))


def after(member: str) -> Callable[[Path], bool]:
    return lambda root: has_finished(root, member)


def within(member: str) -> Callable[[Path], bool]:
    return lambda root: any(line["step"] >= 5 for line in lines(root / member / "metrics.jsonl"))


def tells_predictions(root: Path) -> bool:
    return (root / "predictions.csv").exists()


def tells_a_bundle(root: Path) -> bool:
    """Whether the first of the bundles holds what the end found."""
    return bool(json.loads((root / MEMBERS[2][0] / "bundle/bundle.json").read_text())["evaluation"])


Stop = tuple[Callable[[Path], bool], signal.Signals, int]
"""When a start is stopped, by which signal, and how many members have finished then."""

WITHIN_A_FOLD: list[Stop] = [
    (within(MEMBERS[1][1]), signal.SIGINT, 1),
    (tells_predictions, signal.SIGKILL, 3),
]
WITHIN_A_SEED: list[Stop] = [
    (within(MEMBERS[2][3]), signal.SIGINT, 3),
    (tells_predictions, signal.SIGKILL, 6),
]
BETWEEN: list[Stop] = [
    (after(MEMBERS[2][1]), signal.SIGKILL, 2),
    (tells_a_bundle, signal.SIGKILL, 6),
]
AFTER_ALL: list[Stop] = [
    (within(MEMBERS[1][1]), signal.SIGINT, 1),
    (after(MEMBERS[1][2]), signal.SIGINT, 3),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("processes", "seeds", "stops"),
    [
        (1, 1, WITHIN_A_FOLD),
        pytest.param(1, 2, WITHIN_A_SEED, marks=pytest.mark.prove),
        pytest.param(1, 2, BETWEEN, marks=pytest.mark.prove),
        pytest.param(2, 1, AFTER_ALL, marks=pytest.mark.prove),
    ],
    ids=["fold", "seed", "between", "two processes"],
)
def test_stopped_and_started_again_it_ends_as_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, seeds: int, stops: list[Stop]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without MMseqs2: relatives are counted by words, which takes no second
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    root, members = stopped / "run", MEMBERS[seeds]
    done = run(command(whole, processes, seeds))
    assert done.status == 0, done.output
    for when, by, finished in stops:
        said = started_and_ended(command(stopped, processes, seeds), stopped, when, by)
        assert [has_finished(root, member) for member in members] == [
            number < finished for number in range(len(members))
        ]
        assert ("stopped by SIGINT" in said) == (by == signal.SIGINT)
        if by == signal.SIGINT and finished < len(members):
            step = end_of(root / members[finished]).step
            assert f"stopped by SIGINT at step {step}; saved: {root / members[finished]}" in said
            assert not (root / members[finished + 1]).exists()
    done = run(command(stopped, processes, seeds))
    assert done.status == 0, done.output
    for member in members:
        compare_members(root / member, whole / "run" / member)
    assert files(root) == files(whole / "run")
    for name in ("predictions.csv", "split.csv"):
        assert (root / name).read_bytes() == (whole / "run" / name).read_bytes()
    assert told(root / "scores.json") == told(whole / "run/scores.json")
    again_it_does_little(command(stopped, processes, seeds), stopped, len(members), done)


def compare_members(one: Path, other: Path) -> None:
    assert bit_equal(end_of(one), end_of(other))
    assert best_valid(one / "checkpoints").trainer.step == best_valid(other / "checkpoints").trainer.step
    assert (one / "bundle/model.safetensors").read_bytes() == (other / "bundle/model.safetensors").read_bytes()
    assert told(one / "bundle/bundle.json") == told(other / "bundle/bundle.json")
    of_steps, validations = ([kept(root, name) for root in (one, other)] for name in ("loss", "validation"))
    assert of_steps[0] == of_steps[1]
    assert validations[0] == validations[1]


def kept(root: Path, name: str) -> list[tuple[int, Any]]:
    """What metrics.jsonl tells of each step, without what was lost in a restart."""
    return [(line["step"], line[name]) for line in RunReader(root).lines if name in line]


def files(root: Path) -> set[str]:
    """All paths, but for a checkpoint in quarantine, that of a step whose validation a signal ended.

    And but for what a kill leaves beside a table that is being written, until it is written once more.
    """
    paths = (path.relative_to(root) for path in root.rglob("*"))
    return {str(path) for path in paths if ".quarantine" not in path.parts and not path.name.startswith(".split.csv-")}


def told(path: Path) -> Any:
    """A JSON file without times, names of folders, and hashes of what holds them."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: timeless(each) for key, each in value.items() if key not in ("seconds", "created", "id", "inputs")
            }
        return [timeless(each) for each in value] if isinstance(value, list) else value

    return timeless(json.loads(path.read_text().replace("/stopped/", "/whole/")))


def again_it_does_little(words: list[str], folder: Path, members: int, before: Launched) -> None:
    """Once all is done, a start trains and validates nothing, and writes no weights."""

    def written() -> dict[str, tuple[int, int]]:
        names = [*(folder / "run").rglob("*.safetensors"), *(folder / "run").rglob("metrics.jsonl")]
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in names}

    first = written()
    done = run(words)
    assert done.status == 0, done.output
    assert written() == first
    assert done.output.count(": nothing is left to train") == members
    assert done.output.split("\nscores of ")[1] == before.output.split("\nscores of ")[1]
