"""A command: what it prints when it ends other than well, and its exit status.

In: what the command does. Out: the status, which is 0 or that of the class of the error
(`zymogen.processes.exit_classes`). State: none.
"""

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from zymogen.command_line.parser import CommandParser, SettingsHelp
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import log, log_error
from zymogen.files.durable import CLOSED, FULL, format_os_error, replacing_file, write_error
from zymogen.processes.environment import use_standard_streams, use_writable_caches
from zymogen.processes.errors import ExternalError, PeerError, RollbackError
from zymogen.processes.exit_classes import INPUT, INTERRUPTED, PEER, STORAGE, class_of
from zymogen.processes.launcher import LaunchedWorld, command_line, forward_exit_status, launched_world
from zymogen.processes.resources import resources
from zymogen.processes.signals import Interrupted, raise_if_set
from zymogen.settings.origin import use_options

_PATIENCE_S = 5.0
"""How long a rank waits for the one that failed first, or may report the same mistake, to end."""


def run_and_report(body: Callable[[], int | None], *, is_alone: bool = False) -> int:
    """Run `body` and report what ends it; the exit status.

    Args:
        body: what the command does; a command that judges returns its exit status, True being 1. An error that prevents
            the judgement has the status of its class, which is never 1.
        is_alone: whether it cannot be shared by several processes, and refuses to be launched as several. Without a
            launcher it is one, whatever RANK and WORLD_SIZE are: operators set them in each pod for what is trained.

    Raises:
        RollbackError: the command is to start over.
    """
    use_standard_streams(outlives_reader=True)
    use_writable_caches()
    rank = 0
    try:
        is_one = is_alone and "LOCAL_RANK" not in os.environ
        rank, world_size, *_ = LaunchedWorld() if is_one else launched_world()
        if is_alone and world_size > 1:
            raise ValueError(
                f"{world_size} processes were started, and each would do and write the same; this command is one "
                "process: start it with python -m, without a launcher"
            )
        return int(body() or 0)
    except Interrupted as stopped:
        return _stopped(stopped, rank)
    except KeyboardInterrupt:
        if rank == 0:
            log("interrupted; the same command begins again, or continues a run from its last checkpoint")
        return INTERRUPTED.status
    except RollbackError:
        raise  # to what can start over: `zymogen.processes.fresh_process`
    except Exception as error:
        is_line = isinstance(error, ExternalError) or class_of(error) in (INPUT, STORAGE)
        return _mistake(error, rank) if is_line else _report(error, rank)
    finally:
        use_options(None)


@contextmanager
def importing_torch() -> Iterator[None]:
    """Around the imports of a command: rank 0 says so where they take seconds, and no garbage is looked for.

    Python looks through all objects whenever there are a quarter more of them, and imports make ever more objects and
    next to no garbage: that took a sixth of their time, and more than that later. What was imported is not looked
    through any more. torch's threads wait as `short_switch_interval` says. In a process that had imported torch before,
    nothing of this is changed: its objects are not ours, and its threads have been told.
    """
    with ProgressBar("starting: importing torch", after_s=2.0, speaks=launched_world().rank == 0):
        if "torch" in sys.modules:
            yield
            return
        os.environ |= short_switch_interval(os.environ)
        if (cores := resources().cores) < (os.cpu_count() or 1):  # torch sees the affinity, and no quota
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // (launched_world().local_world_size or 1))))
        if not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
            gc.freeze()
        finally:
            gc.enable()


def short_switch_interval(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a process's threads wait awake for each other for a moment alone; {} if it has its own.

    After each operation the threads of a process on a CPU wait for the last of them. GNU OpenMP lets them do so awake
    for some milliseconds. Where other programs need the cores too, the thread that the others wait for gets none before
    these have given up: beside two other trainings on two cores that made steps 12 to 17 times slower. Alone, on 2 and
    on 16 cores, this costs nothing; a tenth of it does (docs/results.md). It is read when torch is imported.
    """
    if environment.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        return {}
    return {"GOMP_SPINCOUNT": "10000"}


def add_override_options(parser: argparse.ArgumentParser, settings: Callable[[str], str]) -> None:
    """Add the options of a command that trains: its settings, and what it does although that is refused otherwise.

    Args:
        parser: of the command.
        settings: returns the help of a section of its recipe; of "" all settings.
    """
    add = parser.add_argument
    add(
        "--help-settings",
        action=SettingsHelp,
        text=settings,
        metavar="SECTION",
        help="Print the settings of a recipe, or of a section such as data.mask, and exit.",
    )
    add("--allow-schedule-change", action="store_true", help="Continue a run with other settings of class 'schedule'.")
    add("--allow-code-change", action="store_true", help="Continue a run whose recipe names a class that has changed.")
    add(
        "--despite-failures",
        action="store_true",
        help="Start even though the last three attempts failed with the same error, or the last ten saved no "
        "checkpoint. Use it after fixing the cause.",
    )


def _stopped(stopped: Interrupted, rank: int) -> int:
    """Rank 0 prints what a signal ended and the command that continues; return the exit status."""
    if rank == 0:
        saved = f"saved: {stopped.checkpoint}; to continue" if stopped.checkpoint else "to begin again or continue"
        if stopped.unsaved:
            newest = f"the run continues from {stopped.checkpoint}" if stopped.checkpoint else "the run begins again"
            saved = f"not saved, as {stopped.unsaved}; {newest}: to continue"
        _say(f"{stopped.outcome}; {saved}: {command_line()}")
    return stopped.status


def _say(line: str) -> None:
    """Print a line about what ended the run, and have the launcher repeat it after its own."""
    log(line)
    forward_exit_status(line)


def _mistake(error: Exception, rank: int) -> int:
    """Print one line about a mistake in the input, a full disk or a checkpoint; return the exit status."""
    # Rank 0 mostly has the same error, and prints it first.
    if rank and (status := _ended_while_waiting()):
        return status
    text = format_os_error(error) if isinstance(error, OSError) and error.errno in CLOSED | FULL else str(error)
    _say(f"error: {f'rank {rank}: ' if rank else ''}{text}")
    return class_of(error).status


def _report(error: Exception, rank: int) -> int:
    """Rank 0 prints where it failed; another rank prints one line.

    Returns:
        The exit status.
    """
    if class_of(error) is PEER and (rank or launched_world().world_size > 1):
        return _report_consequence(error, rank)
    if rank == 0:
        log_error(type(error), error, error.__traceback__)
        forward_exit_status("".join(traceback.format_exception_only(error)).rstrip())
    else:
        _say("; ".join((f"rank {rank}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ()))))
    return class_of(error).status


def _report_consequence(error: Exception, rank: int) -> int:
    """Print one line that names the first cause, where it is known; return the exit status.

    Rank 0 prints it at once, another rank only if nobody ends it, and none where rank 0 has printed what it failed by.
    The launcher tells of the rank that ends first, so this one waits for that.
    """
    cause = "; ".join(getattr(error, "__notes__", ())) or str(error)
    line = f"rank {rank} ended because another rank, or the network, failed: {cause}"
    if rank == 0:
        log(line)
    if status := _ended_while_waiting():
        return status
    if rank == 0:
        forward_exit_status(line)
    elif not isinstance(error, PeerError):
        _say(line)
    return PEER.status


def _ended_while_waiting() -> int | None:
    """Wait for the rank that failed first; the exit status if the launcher, when that has ended, ends this one too."""
    try:
        raise_if_set()  # it may have done so already
        time.sleep(_PATIENCE_S)
    except Interrupted as stopped:
        return stopped.status
    return None


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Add the options for the file that `write_output` writes."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--overwrite", action="store_true", help="replace the file where it exists")


def write_output(out: Path | None, text: str) -> None:
    """Write what was computed to the file of ``-o``, whole or not at all; None is nothing."""
    if out is not None:
        with replacing_file(out, "give another name with -o") as new:
            new.write_text(text, encoding="utf-8")


def require_free(out: Path | None, *, overwrites: bool) -> None:
    """Refuse a file to write that exists, unless it is to be replaced, or whose folder does not; None is nothing.

    Raises:
        ValueError: so.
    """
    if out is None:
        return
    if os.path.lexists(out) and not (overwrites and out.is_file()):
        raise ValueError(f"{out} exists; give another name with -o, or replace it with --overwrite")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent} is no folder; make it, or give another name with -o")
    require_writable(out.parent)


def require_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be made, before anything is computed.

    Raises:
        ValueError: so.
    """
    with write_error(folder, "get the right to write there, or give another name"), TemporaryFile(dir=folder):
        pass


def make_main(
    module: str,
    about: str,
    options: Callable[[CommandParser], None],
    body: Callable[[argparse.Namespace], int | None],
    *,
    is_alone: bool = False,
) -> Callable[..., int]:
    """The `main` of a command: it takes the words after the command's name, or those of a test, and answers for them.

    Args:
        module: what is run by ``python -m``.
        about: whose first line says what the command does.
        options: adds the options to a parser.
        body: does what they ask for; its exit status is as for `run_and_report`.
        is_alone: as for `run_and_report`.
    """

    def main(arguments: list[str] | None = None) -> int:
        def attempt() -> int | None:
            parser = CommandParser(prog=f"python -m {module}", description=about.split("\n")[0])
            options(parser)
            return body(parser.parse_args(arguments))

        return run_and_report(attempt, is_alone=is_alone)

    return main
