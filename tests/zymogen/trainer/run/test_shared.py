"""Runs on shared machines: who may read a checkpoint, closed folders, file systems without locks."""

import errno
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.export.__main__ import main as export_main
from pretrain.export.export import export
from pretrain.report.page import write_report
from support.checkpoint_run import build, save, train
from support.forked import NOBODY, opened_again, public_folder, without_rights
from zymogen.trainer.checkpoint.load import newest_valid, verify
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.lock import RunLock, is_held


@pytest.fixture(scope="module")
def finished(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run, made under the umask 027."""
    folder = tmp_path_factory.mktemp("shared")
    before = os.umask(0o027)
    try:
        assert main([str(recipe_in(folder)), "schedule.total_tokens=900"]) == 0
    finally:
        os.umask(before)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Iterator[Path]:
    """The same again; its recipe still names the folder of `finished`."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    yield tmp_path
    opened_again(tmp_path)


def modes(folder: Path) -> set[tuple[str, int]]:
    """Kind and mode of a folder and of all in it."""
    paths = [folder, *folder.rglob("*")]
    return {("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in paths}


def words(folder: Path, *more: str) -> list[str]:
    return [str(folder / "recipe.toml"), f"run.directory='{folder}/run'", "schedule.total_tokens=900", *more]


# Modes --------------------------------------------------------------------------------------------


def test_what_holds_weights_or_proteins_is_private_and_all_else_follows_the_umask(finished: Path) -> None:
    run = finished / "run"
    write_report(run)
    for name in ("predictions.json", "report.html"):
        assert stat.S_IMODE((run / name).stat().st_mode) == 0o600
    assert modes(run / "export") == {("folder", 0o750), ("file", 0o640)}
    for name, mode in {".": 0o750, "checkpoints": 0o700, "run.json": 0o640, "metrics.jsonl": 0o640}.items():
        assert stat.S_IMODE((run / name).stat().st_mode) == mode
    assert not list(run.glob(".export*"))


def test_another_user_reads_a_shared_checkpoint_and_no_private_one() -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    with public_folder() as folder:
        before = os.umask(0o022)
        save(folder / "private", TorchState(model, optimizer), 1)
        save(folder / "shared", TorchState(model, optimizer), 1, shared=True)
        os.umask(before)

        def other() -> None:
            found = newest_valid(folder / "shared", writer=False)
            assert found is not None
            assert found.trainer.step == 1
            if os.geteuid() == NOBODY:  # on a machine where this is not root, it is the same user
                with pytest.raises(Exception, match="Permission denied"):
                    verify(folder / "private/step-000000001")

        assert without_rights(other, NOBODY) == 0


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_an_export_follows_the_umask(umask: int, folder: Path) -> None:
    before = os.umask(umask)
    try:
        path, _ = export(RunDirectory(folder / "run"))
    finally:
        os.umask(before)
    assert modes(path) == {("folder", 0o777 & ~umask), ("file", 0o666 & ~umask)}


# Closed folders -----------------------------------------------------------------------------------


def test_closed_folders_are_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    closed, model = folder / "closed", folder / "model"
    closed.mkdir()
    for name in ("recipe.toml", "run"):
        (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, closed / name)
    fasta = Path(json.loads((folder / "run/run.json").read_text())["recipe"]["data"]["sources"][0])
    shutil.copy(fasta, closed / "a.fasta.gz")
    (store,) = (path.parent for path in folder.rglob("store.json"))
    shutil.copytree(store, closed / "store")
    shutil.copytree(folder / "run/export", closed / "model")
    shutil.copytree(folder / "run/export", model)
    for name in ("config.json", "model.safetensors"):
        shutil.copytree(model, folder / name)
        (folder / name / name).chmod(0o000)
    (folder / "open").mkdir()
    closed.chmod(0o000)
    fresh = f"run.directory='{folder}/new'"
    init = [fresh, "model.preset=none"]
    commands: list[tuple[list[str], Path]] = [
        ([str(closed / "recipe.toml")], closed / "recipe.toml"),
        (words(folder, f"run.directory='{closed}/run'"), closed / "run"),
        (words(folder, f"run.directory='{closed}/new'"), closed / "new"),
        (words(folder, fresh, f"data.sources=['{closed}/a.fasta.gz']"), closed / "a.fasta.gz"),
        (words(folder, fresh, f"data.sources=['{closed}/*.gz']"), closed),
        (words(folder, fresh, f"data.sources=['{closed}/store']"), closed / "store"),
        (words(folder, fresh, f"data.clusters='{closed}/clusters.tsv'"), closed / "clusters.tsv"),
        (words(folder, fresh, f"data.exclude='{closed}/exclude.tsv'"), closed / "exclude.tsv"),
        (words(folder, fresh, f"data.store_dir='{closed}'"), closed),
        (words(folder, *init, f"model.init='{closed}/model'"), closed / "model"),
        (words(folder, *init, f"model.init='{folder}/config.json'"), folder / "config.json"),
        (words(folder, *init, f"model.init='{folder}/model.safetensors'"), folder / "model.safetensors"),
    ]

    def work() -> None:
        wrong = {}
        for arguments, path in commands:
            status = main(arguments)
            said = capfd.readouterr()
            (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")] or [""]
            if status != 78 or str(path) not in line or "Traceback" in said.err:
                wrong[" ".join(arguments)] = (status, said)
        assert wrong == {}
        assert export_main([str(closed / "run")]) == 78
        assert re.search(f"error: {closed}.*Permission denied", capfd.readouterr().err)

    assert without_rights(work) == 0, capfd.readouterr().err


# File systems without locks -----------------------------------------------------------------------


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP])
def no_locks(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_run_without_locks_says_so(folder: Path, no_locks: None, capsys: pytest.CaptureFixture[str]) -> None:
    held = RunLock(folder), RunLock(folder)
    assert capsys.readouterr().err.count(f"{folder}: its file system has no locks; see to it that no other") == 2
    assert not is_held(folder)
    del held


def test_locks_are_taken_where_there_are_some(folder: Path) -> None:
    held = RunLock(folder)
    assert is_held(folder)
    with pytest.raises(ValueError, match="another process trains in this directory; wait for it"):
        RunLock(folder)
    del held
    assert RunLock(folder)
