"""`python -m pretrain.inspect verify`: which checkpoints of a run are whole, and what is wrong with the others."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain.inspect import verify
from pretrain.inspect.__main__ import main
from support.checkpoint_run import files_of, flip, rewrite_manifest, write_ranks
from support.forked import in_process

HEADINGS = ["step", "verdict", "reason"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with the checkpoints of steps 3, 4 and 1,200, each of two ranks."""
    (tmp_path / "run.json").write_text('{"format": "zymogen.run/2"}')
    for step in (3, 4, 1200):
        write_ranks(tmp_path / "checkpoints", 2, step)
    return tmp_path


def said(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[list[str]], str]:
    """Exit status, the cells of each row, and the last line."""
    status = main(["verify", str(path)])
    first, *rows, last = capsys.readouterr().out.splitlines()
    assert first.split() == HEADINGS
    return status, [row.split(maxsplit=2) for row in rows], last


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files_of(folder)}


def test_whole_checkpoints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(run)
    status, rows, last = said(run, capsys)
    assert rows == [["3", "whole"], ["4", "whole"], ["1,200", "whole"]]
    assert (status, last) == (0, "3 of 3 whole; the newest whole one is step-000001200")
    status, rows, last = said(run / "checkpoints/step-000000004", capsys)
    assert (status, rows) == (0, [["4", "whole"]])
    assert content(run) == before


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str, int]] = {
    "flip": (lambda p: flip(p / "model/00001.safetensors", -3), "damaged", "hash: model/00001.safetensors", 74),
    "truncation": (lambda p: os.truncate(p / "optimizer/00000.safetensors", 70), "damaged", "size: opt", 74),
    "of the manifest": (lambda p: flip(p / "manifest.json", 30), "damaged", "manifest: self_sha256", 74),
    "other version": (
        lambda p: rewrite_manifest(p, lambda m: m.update(schema="zymogen.checkpoint/9"), sign=True),
        "other version",
        "written by zymogen",
        78,
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_told_and_nothing_is_moved(run: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    harm, verdict, reason, expected = DAMAGE[kind]
    harm(run / "checkpoints/step-000001200")
    before = content(run)
    status, rows, last = said(run, capsys)
    assert [row[1] for row in rows[:2]] == ["whole", "whole"]
    words = " ".join(rows[2][1:])
    assert words.startswith(f"{verdict} {reason}" if verdict == "damaged" else verdict)
    assert reason in words
    assert (status, last) == (expected, "2 of 3 whole; the newest whole one is step-000000004")
    assert content(run) == before
    for path in (run / "checkpoints").iterdir():
        assert main(["verify", str(path)]) == (expected if path.name == "step-000001200" else 0)


def test_every_flip_and_truncation_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, draw = run / "checkpoints/step-000000003", random.Random(0)
    for file in files_of(path):
        raw = file.read_bytes()
        for number in range(4):
            if number % 2:
                flip(file, draw.randrange(len(raw)))
            else:
                os.truncate(file, draw.randrange(len(raw)))
            assert main(["verify", str(path)]) == 74
            assert "damaged" in capsys.readouterr().out.splitlines()[1]
            assert main(["verify", str(run)]) == 74, "also where later ones are whole"
            assert capsys.readouterr().out.count("damaged") == 1
            file.write_bytes(raw)
    assert main(["verify", str(path)]) == 0


def test_one_that_vanishes_is_left_out(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = verify.verify

    def overtaken(path: Path) -> object:
        shutil.rmtree(run / "checkpoints/step-000000003", ignore_errors=True)
        return real(path)

    monkeypatch.setattr(verify, "verify", overtaken)
    status, rows, last = said(run, capsys)
    assert ([row[0] for row in rows], status) == (["4", "1,200"], 0)
    assert last == "2 of 2 whole; the newest whole one is step-000001200"


def test_what_is_no_run_is_a_mistake(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "nowhere")]) == 78
    assert "is it a run directory?" in capsys.readouterr().err.replace(str(tmp_path / "nowhere"), "it")
    assert main(["verify", f"{run}s"]) == 78
    assert f"is {run}s a run directory? the nearest is '{run}'" in capsys.readouterr().err
    folds = tmp_path / "folds"
    (folds / "fold-0").mkdir(parents=True)
    shutil.copy(run / "run.json", folds / "fold-0")
    assert main(["verify", str(folds)]) == 78
    assert f"is {folds} a run directory? it holds runs: {folds}/fold-0" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    assert main(["verify", str(run)]) == 78
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_want_of_rights_is_not_damage(run: Path) -> None:
    def look() -> None:
        assert main(["verify", str(run)]) == 74

    for folder in run.parents[:3]:
        folder.chmod(0o755)
    assert in_process(look, run) == 0
