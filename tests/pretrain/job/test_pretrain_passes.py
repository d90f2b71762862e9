"""The length of a run in passes: counted before its first step, and from then on the same as one in tokens."""

import json
from pathlib import Path

import pytest

from data.order.plan_size import tokens_per_epoch
from pretrain.__main__ import main
from pretrain.corpora import open_on_every_rank
from pretrain.recipe import Recipe
from support.launching import lines
from zymogen.processes.launcher import LaunchCommand
from zymogen.settings.toml_file import read
from zymogen.trainer.optimizer.settings import ScheduleSettings


def test_passes_become_tokens() -> None:
    schedule = ScheduleSettings(passes=2.5, warmup=0.1)
    counted = schedule.in_tokens(1001)
    assert (counted.passes, counted.total_tokens, counted.warmup_length) == (None, 2502, 250)
    assert ScheduleSettings(passes=1e-9).in_tokens(1001).total_tokens == 1
    assert (given := ScheduleSettings(total_tokens=9)).in_tokens(1001) is given
    with pytest.raises(ValueError, match=r"schedule\.warmup_tokens is 2500; it must end before the decay does"):
        ScheduleSettings(passes=2.5, warmup_tokens=2500).in_tokens(1001)
    with pytest.raises(ValueError, match=r"schedule\.passes is 2\.5; this program does not count the tokens of a pass"):
        schedule.require_tokens()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("schedule.total_tokens=900",), "schedule.passes is 3 and schedule.total_tokens is 900; give one of them: "),
        (("schedule.total_tokens=none", "schedule.passes=0"), "schedule.passes is 0.0; it must be above 0"),
        (("schedule.total_tokens=none", "data.streaming=true", "data.clusters=none"), "a stream has no pass whose"),
        (("schedule.total_tokens=none", "data.curriculum=[[5000, 60]]"), "a curriculum has no pass whose tokens"),
    ],
)
def test_what_has_no_such_length_is_refused(settings: tuple[str, ...], said: str, recipe_in, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="passes") as caught:
        read(Recipe, recipe_in(tmp_path), ["schedule.passes=3", *settings])
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_run_of_passes_is_the_run_of_as_many_tokens(recipe_in, tmp_path: Path) -> None:
    path, run = recipe_in(tmp_path), tmp_path / "run"
    words = [str(path), "schedule.total_tokens=none", "schedule.passes=0.25"]
    assert main(words) == 0
    recipe = read(Recipe, path)
    total = round(0.25 * tokens_per_epoch(_corpora(recipe).plan(recipe.run.seed)))
    schedule = json.loads((run / "run.json").read_text())["recipe"]["schedule"]
    assert (schedule["total_tokens"], schedule["passes"]) == (total, None)
    assert 2000 < total <= lines(run / "metrics.jsonl")[-1]["tokens"] < total + 900  # a step less at most
    assert main([str(path), f"schedule.total_tokens={total}"]) == 0  # another way to say the same
    assert main([*words, "schedule.passes=0.26"]) == 78
    assert [line["exit"] for line in lines(run / "attempts.jsonl") if "exit" in line] == ["finished", "finished"]


def _corpora(recipe: Recipe):
    from accelerate import Accelerator

    from zymogen.trainer.engine.engine import Engine

    return open_on_every_rank(recipe.data, Engine(Accelerator(cpu=True)))


def test_sources_are_given_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["your.fasta", "schedule.passes=3"]) == 78
    assert "schedule.passes is for a recipe; where one is chosen for sequences, --minutes" in capfd.readouterr().err


def test_a_command_that_gives_tokens_takes_the_passes_out() -> None:
    start = LaunchCommand(Path("r.toml"), ["schedule.passes=3", "run.seed=1"], "go", is_in_passes=True)
    assert start.command({"schedule.total_tokens": 90}) == (
        "go r.toml run.seed=1 schedule.total_tokens=90 schedule.passes=none"
    )
    assert start.command({"run.seed": 2}) == "go r.toml schedule.passes=3 run.seed=2"
