"""`python -m pretrain.inspect audit`: whether a run was trained on what its recipe says."""

import json
from pathlib import Path

import pytest

from pretrain.__main__ import main as train
from pretrain.inspect.__main__ import main
from support.kept_runs import STEPS_12, Trained
from support.launching import end_of
from zymogen.trainer.checkpoint.load import find, verify

HEADING = "        step            tokens  trained on"


def said(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[list[str]], str]:
    capsys.readouterr()
    status = main(["audit", str(run)])
    first, *rows, last = capsys.readouterr().out.splitlines()
    assert first == HEADING
    return status, [row.split(maxsplit=2) for row in rows], last


def change(run: Path, section: str, **values: object) -> None:
    path = run / "run.json"
    content = json.loads(path.read_text())
    content["recipe"][section].update(values)
    path.write_text(json.dumps(content))


@pytest.mark.slow
def test_a_run_that_was_stopped_and_continued(recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = recipe_in(tmp_path), tmp_path / "run"
    for tokens in ("3_000", "8_800"):
        words = [*STEPS_12[1:], f"schedule.total_tokens={tokens}", "run.keep_checkpoints=9", "--allow-schedule-change"]
        assert train([str(recipe), "run.checkpoint_every=3", *words]) == 0
    saved = [verify(path).trainer for path in reversed(find(run / "checkpoints"))]
    status, rows, last = said(run, capsys)
    assert rows == [[f"{each.step:,}", f"{each.tokens_seen:,}", "what the recipe says"] for each in saved]
    assert len(rows) > 4
    assert (status, last) == (0, f"{len(rows)} of {len(rows)} as the recipe says, 12 steps")
    # Another seed draws other samples; the tokens of the first steps are others, too.
    change(run, "run", seed=1)
    status, rows, last = said(run, capsys)
    assert {row[2] for row in rows} == {"something else"}
    assert (status, last) == (70, f"0 of {len(rows)} as the recipe says, 12 steps")


def test_what_cannot_be_audited(recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = recipe_in(tmp_path), tmp_path / "run"
    assert train([str(recipe), "schedule.total_tokens=1"]) == 0
    capsys.readouterr()
    change(run, "data", streaming=True, clusters=None)
    assert main(["audit", str(run)]) == 78
    assert "trains on a stream, whose first pass is in the order in which it was read" in capsys.readouterr().err
    change(run, "data", streaming=False, validation_fraction=0.3)
    assert main(["audit", str(run)]) == 78
    assert "was started on other data: its split was" in capsys.readouterr().err


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_two_processes_are_audited_by_one(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained("ddp", 2, length=STEPS_12).folder
    status, rows, _ = said(folder / "run", capsys)
    assert status == 0
    assert rows[-1][:2] == ["12", f"{end_of(folder / 'run').tokens_seen:,}"]
