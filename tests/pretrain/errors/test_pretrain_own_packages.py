"""A `data.py` of the user's in the working directory is one error of every command that can notice it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import command, environment


def started(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of Python in a folder."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("file", "commands"),
    [
        ("data.py", ("pretrain", "pretrain.report", "finetune", "finetune.look")),
        ("data/__init__.py", ("pretrain", "finetune.score")),
        ("pretrain.py", ("finetune", "finetune.predict")),
        ("pretrain/__init__.py", ("finetune.embed",)),
    ],
)
def test_a_package_that_is_hidden_is_one_error(file: str, commands: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('it was run')\n")
    name = file.split("/")[0].removesuffix(".py")
    for program in commands:
        status, said = started(tmp_path, "-m", program, "x")
        assert status == 78
        assert said.count("\n") == 1
        assert said.startswith(f"error: {tmp_path / file} hides the package '{name}' of this program; rename it")
    assert started(tmp_path, "-c", "import finetune.recipe", PYTHONSAFEPATH="1") == (0, "")
    status, said = started(tmp_path, "-c", f"import {commands[0].split('.')[0]}")
    assert status == 1
    assert said.splitlines()[-1].startswith(f"ImportError: {tmp_path / file} hides the package")


def test_a_plain_folder_named_data_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "proteins.csv").touch()
    assert started(tmp_path, "-c", "import pretrain, finetune") == (0, "")


@pytest.mark.launch
@pytest.mark.parametrize("late", [0, 1])
def test_ranks_say_it_once(late: int, tmp_path: Path) -> None:
    """Whichever rank comes last."""
    (tmp_path / "data.py").touch()
    starts = tmp_path / "starts"
    starts.mkdir()
    waits = f"import os, time\nif os.environ.get('RANK') == '{late}':\n    time.sleep(2)\n"
    (starts / "sitecustomize.py").write_text(waits)
    path = os.pathsep.join([str(starts), environment()["PYTHONPATH"]])
    status, said = started(tmp_path, *command(["x.fasta"], 2)[1:], PYTHONPATH=path)
    assert status != 0
    assert said.count("hides the package 'data'") == 1
