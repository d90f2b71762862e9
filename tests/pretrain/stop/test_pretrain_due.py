"""Checkpoints, validations and lines at times: by the first rank's clock, on every rank after the same step."""

import json
from pathlib import Path

import pytest

import zymogen.trainer.loop
from pretrain.__main__ import main
from pretrain.recipe import Recipe
from support.checkpoint_run import written_at_once
from support.kept_runs import STEPS_12, Trained
from support.launching import DDP, bit_equal, end_of, lines
from support.rank_pool import RankPool
from zymogen.settings.toml_file import documented, read
from zymogen.trainer.run import interval_schedule

TIMES = ("run.log_every=10 s", "run.checkpoint_every=20 s", "run.evaluate_every=1 min", "run.keep_checkpoints=99")


def saved_steps(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_by_the_clock(recipe_in, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 7 s of a clock that nothing else moves."""
    now, train_step = [0.0], zymogen.trainer.loop.train_step

    def seven_seconds(*arguments: object, **how: object) -> object:
        now[0] += 7.0
        return train_step(*arguments, **how)

    monkeypatch.setattr(interval_schedule, "monotonic", lambda: now[0])
    monkeypatch.setattr(zymogen.trainer.loop, "train_step", seven_seconds)
    with written_at_once():
        assert main([str(recipe_in(tmp_path)), *STEPS_12, *TIMES]) == 0
    metrics = lines(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in metrics if "loss" in line] == [1, 3, 5, 7, 9, 11, 12]
    # What the clock says before a step is done after it.
    assert saved_steps(tmp_path / "run") == [4, 8, 12]
    assert [line["step"] for line in metrics if "validation" in line] == [10, 12]
    reference = trained("single", 1, length=STEPS_12)
    assert bit_equal(end_of(tmp_path / "run"), reference.end)
    assert end_of(tmp_path / "run").chain == reference.end.chain


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_one_clock_decides_for_all_ranks(pool: RankPool, recipe_in, tmp_path: Path) -> None:
    """The other ranks' clocks never say that anything is due, and they take part nevertheless."""
    words = [recipe_in(tmp_path), *STEPS_12, "run.checkpoint_every=0.000001 s", "run.keep_checkpoints=99"]
    done = pool.run(2, DDP, words, fault="slow_clock")
    assert done.status == 0, done.output
    saved = saved_steps(tmp_path / "run")  # a save is due as soon as the one before it has ended
    assert saved == [1, 3, 5, 7, 9, 11, 12]


def test_what_a_user_gives_and_what_help_says(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '[run]\ndirectory = "r"\nlog_every = "5 s"\n[model]\npreset = "esm2_8m"\n[data]\nsources = ["a.fasta"]\n'
    )
    run = read(Recipe, path, ["run.checkpoint_every=2 h", "run.evaluate_every=40"]).run
    assert (run.log_every, run.checkpoint_every, run.evaluate_every) == ("5 s", "2 h", 40)
    with pytest.raises(ValueError, match=r"run\.log_every is '5 m'; it must be a whole number of steps, or a time: "):
        read(Recipe, path, ["run.log_every=5 m"])
    shown = dict(documented(Recipe))
    for name, default in (("log_every", "10 s"), ("evaluate_every", "10 min"), ("checkpoint_every", "10 min")):
        words = f"in steps, or as a time: '30 s', '10 min', '2 h'; default {json.dumps(default)}"
        assert words in shown[f"run.{name}"]
