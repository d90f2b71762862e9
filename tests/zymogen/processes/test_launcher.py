"""A process ends with its launcher, and with nothing else: small stand-ins for both."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.launching import environment, without_launch

SEVERAL = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}
ONE = {"ACCELERATE_USE_CPU": "False", "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
LAUNCHES = """
import os, subprocess, sys, time
words = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
if "shell" in sys.argv:
    words = ["sh", "-c", '"$@"; true', "sh", *words]
subprocess.Popen(words, start_new_session="TORCHELASTIC_RUN_ID" in os.environ)
time.sleep(60)
"""
IS_LAUNCHED = """
import os, signal, sys, time
from zymogen.processes.launcher import end_with_the_launcher
"""
AT_ONCE = f"""{IS_LAUNCHED}
signal.signal(signal.SIGTERM, lambda *_: print("saves", flush=True))
end_with_the_launcher()
print(os.getpid(), flush=True)
while True:
    time.sleep(0.1)
"""
TOO_LATE = f"""{IS_LAUNCHED}
print(os.getpid(), flush=True)
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
end_with_the_launcher()
print("goes on", flush=True)
"""


@dataclass
class Family:
    """A launcher and what it started."""

    launcher: "subprocess.Popen[str]"
    started: psutil.Process

    def lives(self, within_s: float) -> bool:
        """Whether the process outlives its launcher, which is killed, by so long."""
        self.launcher.kill()
        self.launcher.wait()
        end = time.monotonic() + within_s
        while time.monotonic() < end and not self._is_gone():
            time.sleep(0.01)
        return not self._is_gone()

    def said(self) -> str:
        """What it printed until it ended."""
        assert self.launcher.stdout
        return self.launcher.stdout.read()

    def _is_gone(self) -> bool:
        try:
            return not self.started.is_running() or self.started.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


@pytest.fixture
def family(tmp_path: Path) -> Iterator:
    made: list[Family] = []

    def start(name: str, program: str, variables: dict[str, str], *how: str) -> Family:
        (tmp_path / name).write_text(LAUNCHES)
        launcher = subprocess.Popen(
            [sys.executable, str(tmp_path / name), program, *how],
            env={**without_launch(environment()), **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert launcher.stdout
        made.append(Family(launcher, psutil.Process(int(launcher.stdout.readline()))))
        return made[-1]

    yield start
    for each in made:
        for process in (each.launcher, each.started):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        each.launcher.wait()


def test_one_of_several_ends_at_once_whatever_it_does(family) -> None:
    """One that is stopped runs none of its own code: the kernel ends it."""
    each = family("torchrun", AT_ONCE, SEVERAL)
    each.started.send_signal(signal.SIGSTOP)
    assert not each.lives(2)
    assert each.said() == ""  # it does not save


@pytest.mark.parametrize("how", [("mine.py",), ("torchrun", "shell")], ids=["own program", "behind a shell"])
def test_one_that_the_kernel_does_not_tell_looks(family, how: tuple[str, ...]) -> None:
    each = family(how[0], AT_ONCE, SEVERAL, *how[1:])
    assert not each.lives(3)


@pytest.mark.slow
def test_one_alone_saves_and_is_killed_if_it_takes_too_long(family) -> None:
    each = family("accelerate-launch", AT_ONCE, {**ONE, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})
    assert each.lives(0.7)
    assert not each.lives(3)
    assert each.said() == "saves\n"


@pytest.mark.parametrize(
    ("name", "variables"), [("torchrun", SEVERAL), ("accelerate-launch", ONE)], ids=["several", "one"]
)
def test_a_launcher_that_ended_before_it_was_looked_up(family, name: str, variables: dict[str, str]) -> None:
    each = family(name, TOO_LATE, variables)
    assert not each.lives(5)
    assert each.said() == ""


SAYS = """
import os, sys
from zymogen.processes.launcher import command_line
print(os.getpid(), flush=True)
print(command_line(), flush=True)
"""
IN_ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("name", "variables", "words"),
    [
        ("torchrun", SEVERAL, ["--nproc_per_node", "2", "-m", "pretrain"]),
        ("accelerate", ONE, ["launch", "--num_processes", "2", "-m", "pretrain"]),
        ("deepspeed", SEVERAL, ["--num_gpus", "2", "-m", "pretrain"]),
        ("mine.py", SEVERAL, ["--on", "two nodes"]),
    ],
)
def test_the_command_that_continues_is_the_launchers(
    tmp_path: Path, name: str, variables: dict[str, str], words: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(
        "import os, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {SAYS!r}], start_new_session='TORCHELASTIC_RUN_ID' in os.environ)\n"
    )
    environment_there = {**without_launch(environment()), **variables}
    command = [sys.executable, path, *words]
    done = subprocess.run(command, env=environment_there, capture_output=True, text=True, timeout=60)
    assert shlex.split(done.stdout.splitlines()[-1])[1:] == [str(path), *words], done.stderr


def test_the_command_that_continues_has_the_variables_of_several_processes() -> None:
    environment_there = {**without_launch(environment()), **IN_ENVIRONMENT}
    command = [sys.executable, "-c", SAYS, "a b"]
    done = subprocess.run(command, env=environment_there, capture_output=True, text=True, timeout=60)
    words = shlex.split(done.stdout.split("\n", 1)[1])
    assert set(words[:4]) == {f"{name}={value}" for name, value in IN_ENVIRONMENT.items()}
    assert (Path(words[4]).name, words[5], words[-1]) == (Path(sys.executable).name, "-c", "a b")


@pytest.mark.slow
def test_what_a_shell_has_started_outlives_it(family) -> None:
    """One of the launcher's variables, which a user may set, makes no launcher of whoever started the process."""
    each = family("bash.py", AT_ONCE, {"ACCELERATE_MIXED_PRECISION": "no", "WORLD_SIZE": "1"})
    assert each.lives(1.5)
    assert os.getpgid(each.started.pid)
