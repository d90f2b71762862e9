"""What a run writes down: metrics, attempts, errors, and trackers that need no account."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.inputs.seeded_source import until
from support.launching import LIMIT_S, environment, lines
from support.places import ROOT
from zymogen.trainer.run import records

STEP_KEYS = {
    *(
        "step",
        "tokens",
        "attempt",
        "time",
        "loss",
        "perplexity",
        "learning_rate",
        "grad_norm",
        "tokens_per_s",
        "targets",
    ),
    *(
        "loader_wait",
        "memory_bytes",
        "flops_per_s",
        "mfu",
        "padding",
        "document_tokens",
        "imbalance",
        "skipped_steps",
        "failed_saves",
        "skipped_saves",
    ),
}
SCORE_KEYS = {"perplexity", "low", "high", "unigram", "gain", "gain_low", "gain_high", "sequences", "targets"}


@pytest.fixture
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without credentials, and the environment as it was afterwards."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("WANDB_MODE", "to be restored")
    monkeypatch.delenv("WANDB_MODE")


@pytest.mark.slow
def test_trackers_get_the_numbers_without_an_account(recipe_in, tmp_path: Path, no_account: None) -> None:
    words = [str(recipe_in(tmp_path)), 'run.trackers=["tensorboard","wandb"]', "schedule.total_tokens=4_000"]
    assert main([*words, "run.log_every=2", "run.evaluate_every=4"]) == 0
    run = tmp_path / "run"
    metrics = lines(run / "metrics.jsonl")
    losses = {line["step"]: line["loss"] for line in metrics if "loss" in line}
    scores = {line["step"]: line["validation"]["mask_all"]["perplexity"] for line in metrics if "validation" in line}
    assert list(losses) == [2, 4, 6]
    assert list(scores) == [4, 6]

    (folder,) = {path.parent for path in run.rglob("events.out.tfevents.*") if path.parent.name == "zymogen"}
    events = EventAccumulator(str(folder)).Reload()
    assert {e.step: e.value for e in events.Scalars("loss")} == pytest.approx(losses, rel=1e-6)
    perplexities = {e.step: e.value for e in events.Scalars("validation/mask_all/perplexity")}
    assert perplexities == pytest.approx(scores, rel=1e-6)
    assert set(events.Tags()["scalars"]) >= STEP_KEYS - {"step", "tokens", "attempt", "time"}

    (offline,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    written = [json.dumps(loss).encode() for loss in losses.values()]
    until(lambda: all(loss in offline.read_bytes() for loss in written))  # by wandb's own process, when it gets to it
    assert not list(tmp_path.glob("wandb")) + list(tmp_path.glob("*.tfevents*"))


@pytest.mark.launch
def test_trackio_gets_the_numbers(recipe_in, tmp_path: Path) -> None:
    """In a process of its own: trackio chooses its folder when it is imported."""
    words = [recipe_in(tmp_path), 'run.trackers=["trackio"]', "schedule.total_tokens=4_000", "run.log_every=2"]
    settings = {name: value for name, value in environment().items() if not name.startswith("TRACKIO_")}
    command = [sys.executable, "-m", "pretrain", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env={**settings, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert f"trackio       TRACKIO_DIR={run}/trackio trackio show --project zymogen\n" in done.stderr
    with closing(sqlite3.connect(run / "trackio/zymogen.db")) as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    kept = [(step, json.loads(numbers)) for step, numbers in rows]
    losses = {line["step"]: line["loss"] for line in lines(run / "metrics.jsonl") if "loss" in line}
    assert list(losses) == [2, 4, 6]
    assert {step: numbers["loss"] for step, numbers in kept if "loss" in numbers} == losses
    assert [step for step, numbers in kept if "validation/mask_all/perplexity" in numbers] == [6]
    assert not list(tmp_path.glob(".cache/huggingface/trackio"))


def test_metrics_hold_one_line_a_logged_step(recipe_in, tmp_path: Path) -> None:
    words = [str(recipe_in(tmp_path)), "schedule.total_tokens=5_900", "schedule.warmup_tokens=2_000"]
    assert main([*words, "run.log_every=2", "run.evaluate_every=3"]) == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (tmp_path / "run/metrics.jsonl").read_text()
    every = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    logged = [line for line in every if "loss" in line]
    validated = [line for line in every if "validation" in line]
    saved = [line for line in every if "checkpoint_s" in line]
    assert len(every) == len(logged) + len(validated) + len(saved)
    assert [line["step"] for line in logged] == [2, 4, 6, 8]
    assert [line["step"] for line in validated] == [3, 6, 8]
    assert [line["step"] for line in saved] == [8]
    assert 0 < saved[0]["checkpoint_s"] < 60
    tokens = [line["tokens"] for line in logged]
    assert tokens == sorted(set(tokens))
    for line in logged:
        assert set(line) == STEP_KEYS
        assert all(isinstance(line[key], (int, float)) and math.isfinite(line[key]) for key in STEP_KEYS - {"time"})
        assert line["time"].endswith("+00:00")
        assert (line["attempt"], line["skipped_steps"]) == (1, 0)
        assert 2.5 < line["loss"] < 3.8
        assert line["learning_rate"] == pytest.approx(
            1e-3 * line["tokens"] / 2000
            if line["tokens"] < 2000
            else 1e-3 * (0.1 + 0.9 * max(0.0, (5310 - line["tokens"]) / 3310))
        )
        assert 0 <= line["padding"] < 0.35
        # 15 % of residues; every document has two tokens that are none.
        assert 0.09 < line["targets"] / (7 * 128 * (1 - line["padding"])) < 0.19
        assert line["tokens_per_s"] > 100
    for line in validated:
        assert set(line) == {"step", "tokens", "attempt", "time", "validation", "set"}
        assert line["set"] == validated[0]["set"]
        assert set(line["validation"]) == {"mask_all", "80_10_10"}
        assert all(set(scores) == SCORE_KEYS for scores in line["validation"].values())


@pytest.mark.slow
def test_attempts_tell_why_each_began_and_how_it_ended(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    words = [str(recipe_in(tmp_path)), "--allow-schedule-change", "run.checkpoint_every=2"]
    train_step = zymogen.trainer.loop.train_step

    def failing(error: type[BaseException], at: int) -> None:
        calls = iter(range(1, 100))

        def step(*args: object, **kwargs: object) -> object:
            if next(calls) == at:
                raise error("the machine is on fire")
            return train_step(*args, **kwargs)

        monkeypatch.setattr(zymogen.trainer.loop, "train_step", step)

    assert main([*words, "schedule.total_tokens=1_300"]) == 0  # 2 steps
    failing(RuntimeError, at=4)
    assert main([*words, "schedule.total_tokens=5_900"]) == 70  # steps 3 to 5; the checkpoint is of step 4
    assert "RuntimeError: the machine is on fire" in capsys.readouterr().err
    failing(KeyboardInterrupt, at=1)
    assert main([*words, "schedule.total_tokens=5_900"]) == 130
    assert capsys.readouterr().err.endswith("begins again, or continues a run from its last checkpoint\n")
    monkeypatch.undo()
    assert main([*words, "schedule.total_tokens=5_900"]) == 0

    run = tmp_path / "run"
    attempts = lines(run / "attempts.jsonl")
    starts = [line for line in attempts if "cause" in line]
    assert [(line["attempt"], line["base_step"], line["cause"]) for line in starts] == [
        (1, 0, "fresh"),
        (2, 2, "continued: attempt 1 ended as finished"),
        (3, 4, "continued: attempt 2 ended as error"),
        (4, 4, "continued: attempt 3 ended as interrupted"),
    ]
    assert all(line["world_size"] == 1 for line in starts)
    ends = [(line["attempt"], line["exit"]) for line in attempts if "exit" in line]
    assert ends == [(1, "finished"), (2, "error"), (3, "interrupted"), (4, "finished")]
    assert [(line["attempt"], line["step"]) for line in lines(run / "metrics.jsonl") if "loss" in line] == [
        *((1, 1), (1, 2), (2, 3), (2, 4), (2, 5)),
        *((4, 5), (4, 6), (4, 7), (4, 8)),
    ]
    first, second = lines(run / "ranks/rank-00000.jsonl")
    assert (first["attempt"], first["rank"], first["step"], first["phase"]) == (2, 0, 5, "train")
    assert (first["class"], first["error"], first["message"]) == ("error", "RuntimeError", "the machine is on fire")
    assert "RuntimeError: the machine is on fire" in first["traceback"]
    assert (second["attempt"], second["class"], second["error"]) == (3, "interrupted", "KeyboardInterrupt")


def test_a_torn_line_is_closed_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a/b.jsonl"
    records.append(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "torn')
    records.append(path, {"n": 3, "inside": {"x": math.nan}, "y": -math.inf, "z": 0.5})
    records.append(path, {"n": 4})
    assert path.read_bytes().count(b"\n") == 4
    assert list(records.read(path)) == [{"n": 1}, {"n": 3, "inside": {"x": None}, "y": None, "z": 0.5}, {"n": 4}]
    assert list(records.read(tmp_path / "absent.jsonl")) == []
