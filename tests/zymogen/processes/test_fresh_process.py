"""A command is replaced by a fresh process of itself: the same id and words, and nothing else of the old one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import ROOT
from zymogen.processes.errors import RollbackError
from zymogen.processes.fresh_process import MOST_ROLLBACKS, ROLLBACKS, run_command

PROGRAM = """
import os, socket, subprocess, sys
import psutil
from zymogen.processes.errors import RollbackError
from zymogen.processes.fresh_process import ROLLBACKS, run_command

def main():
    of_others = [child.pid for child in psutil.Process().children()]
    listed = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
    is_here = [name for name in listed if os.path.lexists(f"/proc/self/fd/{name}")]
    count = int(os.environ.get(ROLLBACKS, "0"))
    print(os.getpid(), count, sys.argv[1:], of_others, is_here, os.environ.get("CHANGED"), flush=True)
    if count == 2:
        return 78
    os.environ["CHANGED"] = "yes"
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    listening.set_inheritable(True)  # as C++ libraries leave theirs
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    raise RollbackError("the loss leapt")

run_command(main)
"""


def test_a_rollback_replaces_the_process_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Its port is free again, its child is gone, its changes of the environment are, too."""
    from accelerate.utils.other import get_free_port

    program, port = tmp_path / "program.py", str(get_free_port())
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), port, "a b"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 78
    assert said.splitlines() == [f"{started.pid} {count} ['{port}', 'a b'] [] [] None" for count in range(3)]


def test_rollbacks_of_one_launch_are_bounded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise RollbackError("the loss leapt")

    def replaced(*_: object) -> None:
        raise AssertionError("another process would begin")

    monkeypatch.setattr(os, "execve", replaced)
    monkeypatch.setenv(ROLLBACKS, str(MOST_ROLLBACKS))
    with pytest.raises(SystemExit) as ended:
        run_command(main)
    assert ended.value.code == 70
    said = "error: 8 rollbacks in one launch are the most allowed: the loss leapt; start again\n"
    assert capsys.readouterr().err == said
