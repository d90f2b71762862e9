"""A folder for caches belongs to the user by whose rights files are made, and a second user finds another one."""

import os
import tempfile
from pathlib import Path

import pytest

from support.forked import NOBODY, in_process, public_folder
from zymogen.processes import environment


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_process_with_rights_of_another_user_gets_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with public_folder() as folder:
        folder.chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))

        def as_nobody() -> None:
            assert environment._own_folder() == folder / f"zymogen-{NOBODY}"

        (folder / "inside").mkdir()
        assert in_process(as_nobody, folder / "inside") == 0
        assert environment._own_folder() == folder / "zymogen-0"
        assert sorted(os.listdir(folder)) == ["inside", "zymogen-0", f"zymogen-{NOBODY}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may leave a folder of another user")
def test_folder_of_another_user_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "zymogen-0").mkdir(0o700)
    os.chown(tmp_path / "zymogen-0", NOBODY, NOBODY)
    assert environment._own_folder() == tmp_path / "zymogen-0-2"
