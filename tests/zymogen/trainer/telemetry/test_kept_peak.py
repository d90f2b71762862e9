"""The peak of a machine is measured by the first start of a run, and read by those after it on the same machine."""

import itertools
import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.__main__ import main
from zymogen.trainer.engine.ranks import Ranks
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.run_json import FORMAT
from zymogen.trainer.telemetry import peak
from zymogen.trainer.telemetry.peak import PeakFlops, peak_of_all

ALONE = Ranks(SimpleNamespace(process_index=0, num_processes=1, device=torch.device("cpu")))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was measured, in order; each finds another number."""
    asked: list[Any] = []
    numbers = itertools.count(1e9, 1e9)

    def counted(*of: Any) -> PeakFlops:
        asked.append(of)
        return PeakFlops(next(numbers), "measured")

    monkeypatch.setattr(peak, "peak", counted)
    return asked


def test_it_is_kept_for_what_it_depends_on(
    tmp_path: Path, measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT, "recipe": {}}))
    run, bfloat16 = RunDirectory(tmp_path), torch.bfloat16
    assert [peak_of_all(ALONE, run, bfloat16, 64) for _ in range(3)] == [1e9] * 3
    assert len(measured) == 1
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["peak"][1] == 1e9
    assert platform.node() not in json.dumps(content)
    assert peak_of_all(ALONE, run, bfloat16, 65) == 2e9
    assert peak_of_all(ALONE, run, torch.float32, 65) == 3e9
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert [peak_of_all(ALONE, run, torch.float32, 65) for _ in range(2)] == [4e9] * 2
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    assert [peak_of_all(ALONE, run, torch.float32, 65) for _ in range(2)] == [5e9] * 2


def test_a_known_peak_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "peak", lambda *of: PeakFlops(2.0, "known"))
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT}))
    assert peak_of_all(ALONE, RunDirectory(tmp_path), torch.bfloat16, 64) == 2.0
    assert json.loads((tmp_path / "run.json").read_text()) == {"format": FORMAT}  # not written again


@pytest.mark.slow
def test_a_run_that_is_continued_measures_nothing(recipe_in, tmp_path: Path, measured: list[Any]) -> None:
    words = [str(recipe_in(tmp_path)), "schedule.total_tokens=900"]
    assert main(words) == 0
    assert len(measured) == 1
    before = json.loads((tmp_path / "run/run.json").read_text())["peak"]
    assert main([words[0], "schedule.total_tokens=2_400", "--allow-schedule-change"]) == 0
    assert len(measured) == 1
    assert json.loads((tmp_path / "run/run.json").read_text())["peak"] == before
