"""The launcher of this process: the command that started both, and its end, with which this process ends.

In: the environment and the process tree. Out: a command line, and a `LaunchCommand` for the next run; a
`LaunchedWorld`; the end of this process. Kept: a thread that looks.

Ranks that are left alone train on unwatched, or wait for hours. Several ranks are killed, not stopped in order.
Stopping in order means that all agree on a step and save; that takes as long as a step and a save do, and is impossible
in a rendezvous, whose store was the launcher's, in an import, a build, or beside ranks that are gone already. A kill
loses what was trained since the last checkpoint, and nothing else: the next start trains the same steps to the same
bytes, and finds no lock held. One process has nobody to agree with, and Accelerate's launcher of one passes no SIGTERM
on: that its launcher has ended is how the process learns of it. So it gets SIGTERM, which saves, and is killed where
that takes longer than launchers of several wait.

Only a launcher counts. A process that was started in a shell, by nohup or a batch system outlives that shell.
"""

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, NamedTuple

from zymogen.console.safe_text import printable, redacted
from zymogen.processes.parent import signal_at_its_end

if TYPE_CHECKING:
    import psutil  # imported where it is used: a bare GPU machine lacks it

_LAUNCHERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("accelerate", "accelerate.commands.accelerate_cli"), ("launch",)),
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch"), ()),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), ()),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.launch"), ()),
}
"""Launchers by their names, with the word that follows."""
_ELASTIC = "TORCHELASTIC_RUN_ID"
_ACCELERATE = ("ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND")
"""What its launcher of one process sets. A user may set one of them, for a process without a launcher."""
_WATCH_S = 0.5
_TO_SAVE_S = 30.0
"""How long torchelastic waits for ranks that it stops."""


@dataclass(frozen=True)
class Launcher:
    """A process above this one."""

    process: "psutil.Process"
    arguments: list[str]
    """Those of its command line."""
    name: str
    """The first word of the command line. Such launchers start processes from their main thread, which lives as long as
    they do. Empty for somebody's own program, which launches with torch's library."""

    def is_gone(self) -> bool:
        """Whether it has ended, waited for or not."""
        if os.getppid() == self.process.pid:
            return False
        import psutil

        try:
            return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True


def end_with_the_launcher() -> None:
    """Have this process end within a second when its launcher ends, or now if that has ended already.

    Call it first, in the main thread: what came before is not watched. Without a launcher it does nothing.
    """
    if _ELASTIC not in os.environ and not all(name in os.environ for name in _ACCELERATE):
        return
    launcher = next(launches(), None)
    is_one_of_several = os.environ.get("WORLD_SIZE", "1") != "1"
    if launcher is None:
        if _was_left():
            os.kill(os.getpid(), signal.SIGKILL)  # nothing is trained yet
        return
    by = signal.SIGKILL if is_one_of_several else signal.SIGTERM
    # The kernel's signal follows the thread that started this process: not every program that launches keeps it.
    is_told = bool(launcher.name) and launcher.process.pid == os.getppid() and signal_at_its_end(by)
    if is_told and launcher.is_gone():  # before the kernel was asked
        os.kill(os.getpid(), by)
    threading.Thread(target=_watch, args=(launcher, by, is_told), name="launcher", daemon=True).start()


def _was_left() -> bool:
    """Whether a launcher started this process and ended before it could be seen."""
    if _ELASTIC in os.environ:  # whose ranks lead a session each
        return os.getsid(0) == os.getpid()
    import psutil

    # Under mpirun, the parent is no launcher either; in a container, the first process may be somebody's own one.
    return os.getppid() == 1 and not _is_python(psutil.Process(1))


def _is_python(process: "psutil.Process") -> bool:
    import psutil

    try:
        return Path(process.exe()).name.startswith(("python", "pypy"))
    except psutil.Error:
        return False


def _watch(launcher: Launcher, by: Signals, is_told: bool) -> None:
    """End this process once the launcher is gone, with `by` unless the kernel sends it, and at last with SIGKILL."""
    while not launcher.is_gone():
        time.sleep(_WATCH_S)
    if not is_told:
        os.kill(os.getpid(), by)
    if by != signal.SIGKILL:
        text = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")  # that of launchers of several
        time.sleep(float(text) if text.isdecimal() else _TO_SAVE_S)
    os.kill(os.getpid(), signal.SIGKILL)


# Its command line ---------------------------------------------------------------------------------


def command_line() -> str:
    """The command that started this run, launcher included, for a shell in the same folder; without secrets.

    Without a launcher, a process of several is started by its variables, which come first.
    """
    above = [*launches()]
    words = above[-1].process.cmdline() if above else sys.orig_argv  # the last was typed: DeepSpeed's are two
    is_told = not above and launched_world().world_size > 1
    variables = [f"{name}={os.environ[name]}" for name in _OF_WORLD if is_told and name in os.environ]
    # The shell has started the interpreter for a program such as `accelerate`, which it finds without.
    if len(words) > 1 and os.path.basename(words[0]).startswith("python") and os.access(words[1], os.X_OK):
        words = words[1:]
    program = Path(words[0])
    if program.is_absolute() and program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    return redacted(shlex.join([*variables, str(program), *words[1:]]))


def launches() -> Iterator[Launcher]:
    """The launchers above this process, the nearest first; without any, somebody's own program that launched it."""
    import psutil

    has_any, ancestors = False, psutil.Process().parents()
    for ancestor in ancestors:
        with suppress(psutil.Error):
            if found := _parsed(ancestor.cmdline()):
                has_any = True
                yield Launcher(ancestor, *found)
    # Such a program is Python, and this process leads a session.
    is_first = _ELASTIC in os.environ and os.getsid(0) == os.getpid()
    if is_first and not has_any and ancestors and _is_python(ancestors[0]):
        yield Launcher(ancestors[0], [], "")


def _parsed(command: list[str]) -> tuple[list[str], str] | None:
    """The arguments and the name of the launcher that a command line starts; None if it starts something else."""
    for index, word in enumerate(command[:4], 1):
        name = os.path.basename(word)
        if name in _LAUNCHERS:
            end = index + len(_LAUNCHERS[name])
            is_one = tuple(command[index:end]) == _LAUNCHERS[name]
            return (command[end:], name) if is_one else None
    return None


# Its variables ------------------------------------------------------------------------------------

_LEAST = {
    **{"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 1},
    "MASTER_PORT": 1,
}
"""Variables that hold a whole number, with the smallest one."""
_OF_WORLD = (*_LEAST, "MASTER_ADDR")


class LaunchedWorld(NamedTuple):
    """The processes of one launch; without a launcher, this one."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int | None = None
    """Processes on this machine; None if the launcher does not say."""
    num_nodes: int = 1
    """Number of nodes, by torchelastic's count."""
    address: str = ""
    """Host of the store at which all processes meet; empty for one process."""
    port: int = 0


def launched_world() -> LaunchedWorld:
    """Read the variables of the launcher.

    Raises:
        ValueError: one is empty, not a number or too large, or another one is missing.
    """
    given = {name: os.environ[name] for name in _OF_WORLD if name in os.environ}
    numbers = {name: _number(name, text, _LEAST[name]) for name, text in given.items() if name in _LEAST}
    rank, world_size, local_rank = numbers.get("RANK", 0), numbers.get("WORLD_SIZE", 1), numbers.get("LOCAL_RANK")
    if world_size > 1 or rank or local_rank is not None:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            if not given.get(name):
                present = ", ".join(f"{each}={text}" for each, text in given.items() if each != name)
                raise ValueError(
                    f"{name} is {'empty' if name in given else 'missing'} in the environment, which has {present}; a "
                    "process of several needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: set all of them, or none"
                )
    for name, number, limit in (
        ("RANK", rank, world_size),
        ("LOCAL_RANK", local_rank or 0, numbers.get("LOCAL_WORLD_SIZE", world_size)),
        ("MASTER_PORT", numbers.get("MASTER_PORT", 1), 2**16),
    ):
        if number >= limit:
            raise ValueError(f"{name} is {number} in the environment; it must be below {limit:,}: correct the launch")
    address, port = given.get("MASTER_ADDR", ""), numbers.get("MASTER_PORT", 0)
    return LaunchedWorld(
        rank, world_size, numbers.get("LOCAL_WORLD_SIZE"), numbers.get("GROUP_WORLD_SIZE", 1), address, port
    )


def _number(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise ValueError(
            f"{name} is {text!r} in the environment; it must be a whole number from {least} on: correct it, or remove "
            f"it with unset {name}"
        )
    return int(text)


# What it is told ----------------------------------------------------------------------------------

VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Names the file whose content torchrun prints at the end of forty lines of its own about a process that failed."""


def forward_exit_status(line: str) -> None:
    """Have the launcher, if it is torchrun, print `line` at the end of what it prints.

    The file is there whole or not at all: torchrun fails in a way of its own if it cannot read it.
    """
    if not (name := os.environ.get(VARIABLE)):
        return
    path = Path(name)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    # Torchrun writes "traceback : " before a message, and the process whose time is the earliest comes last.
    content = {"message": f"none\n\n{printable(redacted(line))}", "timestamp": int(time.time())}
    with suppress(OSError):
        unfinished.write_text(json.dumps(content))
        unfinished.replace(path)


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How a run was started, from which its next commands are made."""

    recipe: Path
    """The recipe that the next commands name; where a run was started with a sequence file, the one chosen for it."""
    overrides: Sequence[str] = ()
    """The settings that were given on top of it, ``section.field=value`` each."""
    launcher: str = "python -m pretrain"
    """The words before the recipe."""
    is_in_passes: bool = False
    """Whether the recipe gives its length in passes, which a length in tokens replaces."""

    def command(self, settings: Mapping[str, object] | None = None, *flags: str) -> str:
        """The same command with other settings, in place of those that were given, and flags after them."""
        changed = dict(settings or {})
        if self.is_in_passes and "schedule.total_tokens" in changed:
            changed["schedule.passes"] = "none"
        kept = [o for o in self.overrides if o.partition("=")[0] not in changed]
        words = [shlex.quote(word) for word in (*kept, *(f"{name}={value}" for name, value in changed.items()))]
        return " ".join([self.launcher, shlex.quote(str(self.recipe)), *words, *flags])


def launch_command(command: str) -> str:
    """The words of the command that started a run up to its recipe, for another run that is started in the same way.

    Args:
        command: the whole command, as a shell reads it. Where it is not one of this program, Python itself is named.
    """
    words = shlex.split(command)
    for end in range(2, len(words) + 1):
        if words[end - 2 : end] == ["-m", "pretrain"]:
            return shlex.join(words[:end])
    return f"{this_python()} -m pretrain"


def this_python() -> str:
    """This Python, as a word of a command."""
    folder = Path(sys.executable).parent
    folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return shlex.quote(f"{folder}/python")
