"""Claiming a run directory: an error leaves nothing of a first start, and all that was there before."""

import errno
import os
from pathlib import Path

import pytest

from data.settings import DataSettings
from pretrain.model.settings import ModelSettings
from pretrain.recipe import Recipe
from zymogen.trainer.run import directory, records
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.lock import LOCK
from zymogen.trainer.run.settings import RunSettings


def recipe(root: Path, **changed: object) -> Recipe:
    return Recipe(
        run=RunSettings(directory=str(root), **changed),
        model=ModelSettings(preset="esm2_60k"),
        data=DataSettings(sources=("-",)),
    )


def claim(root: Path, error: BaseException | None = None, **changed: object) -> RunDirectory:
    """Claim it and number a start, before which an error may come; on the way, the directory is claimed."""
    run = RunDirectory(root)
    with run.claimed(recipe(root, **changed), allow_schedule_change=False):
        assert {path.name for path in root.iterdir()} >= {"run.json", "run.lock"}
        if error:
            raise error
        run.start_attempt(1, 0)
    return run


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk that stores half a line of attempts.jsonl."""

    def append(path: Path, record: dict[str, object]) -> None:
        path.write_text('{"attempt"')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records, "append", append)
    return monkeypatch


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), ValueError("no checkpoint")])
def test_nothing_is_left_of_a_first_start(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        claim(tmp_path / "new/deep/run", error)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    with pytest.raises(type(error)):
        claim(tmp_path / "run", error)
    assert list(tmp_path.rglob("*")) == [tmp_path / "run"]
    claim(tmp_path / "run")


def test_a_disk_that_cannot_store_the_start(tmp_path: Path, full: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"attempts\.jsonl"):
        claim(tmp_path / "new/run")
    assert list(tmp_path.iterdir()) == []

    def no_lock(root: Path) -> None:
        (root / LOCK).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full.setattr(directory, "RunLock", no_lock)
    with pytest.raises(ValueError, match=r"choose another run\.directory"):
        claim(tmp_path / "new/run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("trained", "seed", "says"), [(False, 0, "cut"), (True, 0, "cut"), (True, 7, "is 7")])
def test_what_an_earlier_start_left_stays(tmp_path: Path, trained: bool, seed: int, says: str) -> None:
    """Also of one that was killed before its first step."""
    root = tmp_path / "run"
    claim(root)
    if trained:
        records.append(root / "metrics.jsonl", {"step": 1})
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    with pytest.raises(ValueError, match=says):
        claim(root, ValueError("cut"), seed=seed)
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before


def test_what_another_process_has_made_stays(tmp_path: Path) -> None:
    root = tmp_path / "run"
    other = RunDirectory(root)
    with other.claimed(recipe(root), allow_schedule_change=False):
        before = {path.name: path.read_bytes() for path in root.iterdir()}
        with pytest.raises(ValueError, match="another process trains in this directory"):
            claim(root)
        assert {path.name: path.read_bytes() for path in root.iterdir()} == before
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a run directory"):
        claim(foreign)
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]
