"""Numbers of the user's on the console: shown by a launched run, when it is continued, and refused."""

import shutil
import sys
from pathlib import Path

import pytest

from pretrain.__main__ import main
from support.launching import launch, lines
from support.places import ROOT
from zymogen.trainer.run.console_numbers import console_numbers, format_numbers
from zymogen.trainer.run.directory import RunDirectory

EXAMPLE = ROOT / "docs/examples/console_numbers.py"
OWN = 'run.console=["learning_rate","console_numbers:tokens_a_day","console_numbers:SmoothLoss"]'


@pytest.mark.launch
def test_own_numbers_of_a_launched_run(recipe_in, tmp_path: Path) -> None:
    """The file may change between two starts: it decides nothing that is learned."""
    recipe, own = recipe_in(tmp_path), Path(shutil.copy(EXAMPLE, tmp_path))
    words = [recipe, OWN, "run.log_every=1", "schedule.total_tokens=2_000"]
    first = launch(words, 2)
    assert first.status == 0, first.output
    shown = [line for line in first.output.splitlines() if line.startswith("step ") and " | learning rate " in line]
    losses = [line["loss"] for line in lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    smooth = 0.9 * losses[0] + 0.1 * losses[1]
    assert "G tokens/day | smooth " in shown[0]
    assert f" | smooth {smooth:.3f} | " in shown[1]
    assert not any(" | loss " in line for line in shown)
    assert RunDirectory(tmp_path / "run").read().code == {}
    own.write_text(own.read_text().replace("G tokens/day", "G a day"))
    second = launch([*words[:3], "schedule.total_tokens=3_000", "--allow-schedule-change"], 2)
    assert second.status == 0, second.output
    assert "G a day | smooth " in second.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("los", "run.console is 'los'; the nearest is 'loss', allowed are 'loss', "),
        ("nowhere:number", "run.console is 'nowhere:number': nowhere cannot be imported"),
        ("console_numbers:missing", "console_numbers.py has no missing; correct the name"),
        ("console_numbers:Mapping", "run.console is 'console_numbers:Mapping': it cannot be made: TypeError: "),
        ("console_numbers:__doc__", "it must be a function, or a class whose objects are called like one"),
    ],
)
def test_a_number_that_is_none_is_refused(
    recipe_in, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        assert main([str(recipe_in(tmp_path)), f'run.console=["{name}"]']) == 78
        sys.modules.pop("console_numbers", None)
    assert said in capfd.readouterr().err


def test_a_number_that_fails_costs_only_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    numbers = console_numbers(["loss", "console_numbers:tokens_a_day"])
    sys.modules.pop("console_numbers")
    assert format_numbers(numbers, {"loss": 2.0}) == [
        "loss 2.000",
        "console_numbers:tokens_a_day: KeyError: 'tokens_per_s'",
    ]
