"""`data.bins_per_forward = "auto"`: as many bins as the free memory holds when the run begins, and no others later."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from data.commands.digest import digest_command
from data.order.settings import forward_bins
from data.settings import DataSettings
from pretrain import job as masked_language_job
from pretrain.__main__ import main
from pretrain.inspect.__main__ import main as inspect
from pretrain.model.memory import MEMORY_SHARE, bins_that_fit
from pretrain.recipe import Recipe
from support.kept_runs import STEPS_12, Trained
from support.launching import DDP, bit_equal, end_of, lines
from support.rank_pool import RankPool
from support.wrong_engine import bytes_for
from zymogen.settings.toml_file import documented
from zymogen.trainer.telemetry.memory import free_bytes

AUTO = "data.bins_per_forward=auto"


@pytest.mark.parametrize(
    ("fit", "most", "chosen"),
    [
        (3.9, 7, 3),
        (7.0, 7, 7),
        (90.0, 7, 7),
        (6.0, 7, 4),  # two passes of 4 and 3, not of 6 and 1: no more passes, and less memory
        (15.0, 16, 8),
        (1.5, 7, 1),
        (0.5, 7, 1),
        (-20.0, 7, 1),
        (8.0, 1, 1),
    ],
)
def test_as_few_bins_as_need_no_more_passes(fit: float, most: int, chosen: int) -> None:
    free = (500.0 + 10.0 * fit) / MEMORY_SHARE + 1e-6
    assert bins_that_fit(free, most, lambda bins: 500.0 + 10.0 * bins) == chosen


def test_a_cpu_tells_no_free_memory() -> None:
    assert free_bytes(torch.device("cpu")) is None


def test_who_chooses_no_number_asks_for_one() -> None:
    settings = DataSettings(sources=("a",), bins_per_forward="auto")
    with pytest.raises(ValueError, match=r"data\.bins_per_forward is 'auto'; this program does not choose the number"):
        forward_bins(settings)
    assert forward_bins(DataSettings(sources=("a",), bins_per_forward=5)) == 5
    with pytest.raises(ValueError, match=r"data\.bins_per_forward is 'most'; it must be a whole number, or 'auto'"):
        DataSettings(sources=("a",), bins_per_forward="most")  # type: ignore[arg-type]


def test_help_names_the_word() -> None:
    text = dict(documented(Recipe))["data.bins_per_forward"]
    assert text.endswith("[int or 'auto' at least 1, in bins; default 1; operational]")


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets the device have memory for so many bins."""

    def arrange(bins: float) -> None:
        free = bytes_for(bins)
        monkeypatch.setattr(masked_language_job, "free_bytes", lambda device: free)

    return arrange


@pytest.fixture(scope="module")
def of_bins(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a run of 12 steps whose recipe gives the number."""

    @cache
    def made(bins: int) -> Path:
        folder = tmp_path_factory.mktemp(f"bins{bins}")
        assert main([str(recipe_in(folder)), *STEPS_12, f"data.bins_per_forward={bins}"]) == 0
        return folder

    return made


def described(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run/run.json").read_text()))


def said(words: str) -> list[str]:
    return [line for line in words.splitlines() if line.startswith("bins a forward pass: ")]


@pytest.mark.slow
def test_a_run_that_is_continued_keeps_the_number_of_its_first_start(
    of_bins: Callable[[int], Path],
    recipe_in,
    tmp_path: Path,
    room: Callable[[float], None],
    signalled_at: Callable[[int], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    recipe = recipe_in(tmp_path)
    words = [str(recipe), *STEPS_12, AUTO]
    room(3.5)
    signalled_at(5)
    assert main(words) == 75
    line = f"of 7 that a process has of a step, by the {bytes_for(3.5) / 1e9:.2f} GB of memory that are free"
    line = f"bins a forward pass: 3, {line}; data.bins_per_forward=N takes N"
    assert said(capfd.readouterr().err) == [line]
    content = described(tmp_path)
    assert content["bins_per_forward"] == 3
    assert line in content["compute"]
    assert content["recipe"]["data"]["bins_per_forward"] == "auto"
    room(7.5)
    assert main(words) == 0
    again = "bins a forward pass: 3, which an earlier start chose; data.bins_per_forward=N takes N"
    assert said(capfd.readouterr().err) == [again]
    assert described(tmp_path)["bins_per_forward"] == 3
    assert [line["base_step"] for line in lines(tmp_path / "run/attempts.jsonl") if "base_step" in line] == [0, 5]
    end = end_of(tmp_path / "run")
    assert (end.step, bit_equal(end, end_of(of_bins(3) / "run"))) == (12, True)
    assert not bit_equal(end, end_of(of_bins(7) / "run"))  # or it would say nothing
    # Bins are what they were, whatever has read run.json.
    assert inspect(["audit", str(tmp_path / "run")]) == 0
    assert "as the recipe says, 12 steps" in capfd.readouterr().out


def test_on_a_cpu_it_is_one(recipe_in, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(recipe_in(tmp_path)), "schedule.total_tokens=900", AUTO]) == 0
    assert described(tmp_path)["bins_per_forward"] == 1
    (line,) = said(capfd.readouterr().err)
    assert line.startswith("bins a forward pass: 1, as more gain hardly anything on a CPU; ")


def test_a_digest_is_that_of_any_number(recipe_in, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    assert list(digest_command(recipe, [AUTO], 0, 3, 2, 0)) == list(digest_command(recipe, [], 0, 3, 2, 0))


@pytest.mark.launch
def test_ranks_take_what_the_one_with_the_least_has_memory_for(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path
) -> None:
    done = pool.run(2, DDP, [recipe_in(tmp_path), *STEPS_12, AUTO], fault="uneven_memory")
    assert done.status == 0, done.output
    assert described(tmp_path)["bins_per_forward"] == 2
    (line,) = said(done.outputs[0])
    assert line.startswith(f"bins a forward pass: 2, of 4 that a process has of a step, by the {_gb(2.5)} of memory ")
    end = end_of(tmp_path / "run")
    assert bit_equal(end, trained("ddp", 2, ["data.bins_per_forward=2"], STEPS_12).end)
    assert not bit_equal(end, trained("ddp", 2, ["data.bins_per_forward=4"], STEPS_12).end)


def _gb(bins: float) -> str:
    return f"{bytes_for(bins, processes=2) / 1e9:.2f} GB"
