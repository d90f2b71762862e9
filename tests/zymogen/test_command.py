"""The command `zymogen`: every command of the project, by the name of its module."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.launching import environment
from support.places import ROOT
from zymogen.__main__ import COMMANDS

NAMES = [name for commands in COMMANDS.values() for name in commands]
SCRIPT = "import sys; from zymogen.__main__ import main; sys.exit(main())"
"""What the installed program does, in a process that, like it, has no working directory among its modules."""


def zymogen(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of the installed program."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def test_commands_are_all_modules_that_python_runs() -> None:
    packages = ("data", "pretrain", "finetune")
    mains = (path for package in packages for path in (ROOT / package).rglob("__main__.py"))
    assert {".".join(path.parent.relative_to(ROOT).parts) for path in mains} == {*NAMES}
    assert all(find_spec(f"{name}.__main__") for name in NAMES)


def test_help_is_one_screen_and_imports_argparse_alone(tmp_path: Path) -> None:
    status, text = zymogen(tmp_path, "--help")
    assert status == 0
    assert all(f"  {name}  " in text for name in NAMES)
    assert text.count("\n") <= 40
    assert max(map(len, text.splitlines())) <= 80
    assert zymogen(tmp_path) == (0, text)
    before = "import argparse, runpy, sys; before = {*sys.modules}; sys.argv = ['zymogen', '--help']; "
    code = f"{before}from zymogen.__main__ import main; main(); sys.exit(' '.join({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    allowed = {"zymogen", "zymogen.__main__", "zymogen.own_packages", "typing", "copyreg"}
    imported = {name for name in done.stderr.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert imported <= allowed


def test_an_unknown_command_names_the_nearest(tmp_path: Path) -> None:
    assert zymogen(tmp_path, "embed", "x") == (78, "error: unknown command 'embed'; did you mean finetune.embed?\n")
    status, text = zymogen(tmp_path, "export")
    assert (status, text) == (
        78,
        "error: unknown command 'export'; did you mean pretrain.export or finetune.export?\n",
    )
    assert "zymogen --help lists them" in zymogen(tmp_path, "qqq")[1]


@pytest.mark.parametrize("name", ["data.py", "pretrain/__init__.py", "finetune.py"])
def test_a_file_in_the_working_directory_hides_no_command(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise SystemExit('it was run')\n")
    (tmp_path / "in.fasta").write_text(">a\nMKTAYIAKQR\n")
    status, text = zymogen(tmp_path, "data", "stats", "in.fasta")
    assert status == 0, text
    assert "it was run" not in text
    status, text = zymogen(tmp_path, "finetune.look", "none.csv")
    assert status == 78
    assert "none.csv" in text


def test_status_output_and_errors_are_those_of_the_module(tmp_path: Path) -> None:
    for words in (("finetune.embed", "--nonsense"), ("pretrain.inspect", "nothing"), ("data", "stats", "nothing")):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert zymogen(tmp_path, *words) == (done.returncode, done.stdout)
        assert done.returncode != 0
