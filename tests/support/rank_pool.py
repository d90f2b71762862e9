"""The real program in processes that are kept: as launched, without the seconds that a launcher and imports take.

    with RankPool(folder) as pool:
        done = pool.run(2, DDP, [recipe, "run.seed=1"])

A run sees the environment that `accelerate launch` sets for its rank, made by Accelerate's own code. What it cannot see
is the launcher: no process above it has that command line. It leaves nothing behind for the next run; what that takes
is in `forgotten_runs`.
"""

import faulthandler
import gc
import importlib
import itertools
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self
from unittest import mock

from support.forgotten_runs import forgotten, measure_peak_once
from support.launching import (
    FLOAT32,
    IMPORTED,
    LIMIT_S,
    Launched,
    environment,
    fork_server,
    launch_environments,
    without_launch,
)
from support.places import ROOT
from zymogen.processes.errors import RollbackError
from zymogen.processes.fresh_process import ROLLBACKS

AT_MOST = 8
PROGRAM = "pretrain.__main__"
TIMED_OUT = 124  # as timeout(1) says it
ENDED = 128 + signal.SIGTERM  # as a shell says it

_GRACE_S = 15.0
"""How long the others may take once a rank has failed; a launcher would end them at once."""
_START_S = 120.0


@dataclass(frozen=True)
class Ended(Launched):
    """A run that ended or was ended; `status` is the largest of all ranks, `output` theirs one after the other.

    Every rank has had its say, also one that a launcher would have ended before it could speak.
    """

    statuses: tuple[int, ...]
    """One for each rank: the program's, `TIMED_OUT`, `ENDED` if it did not follow a rank that had failed, or 128 and
    the signal that killed it."""
    outputs: tuple[str, ...]


class RankPool:
    """Up to `AT_MOST` processes, each started when first needed.

    Args:
        folder: for the output of runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: list[_Worker] = []
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def run(
        self,
        processes: int,
        config: Path,
        arguments: Sequence[object],
        *,
        flags: Sequence[str] = (),
        fault: str | None = None,
        program: str = PROGRAM,
        timeout_s: float = LIMIT_S,
    ) -> Ended:
        """Run the program to its end, on as many processes.

        Args:
            processes: as `--num_processes`.
            config: the launcher's YAML.
            arguments: the program's.
            flags: more flags for the launcher, such as `("--mixed_precision", "bf16")`; float32 unless they say.
            fault: a deliberate one, by its name in `wrong_engine.FAULTS`; several with '+' between them.
            program: the module whose `main` gets the arguments.
            timeout_s: a rank that takes longer is ended, after its stack is written to its output.

        Raises:
            ValueError: more processes than there are, or than the launcher would start.
        """
        if not 1 <= processes <= AT_MOST:
            raise ValueError(f"processes = {processes}: must be 1 to {AT_MOST}")
        with self._begun(processes, config, arguments, flags, fault, program) as (workers, logs):
            statuses = self._statuses(workers, logs, timeout_s)
        outputs = tuple(log.read_text(errors="replace") for log in logs)
        return Ended(max(statuses), "".join(outputs), statuses, outputs)

    def run_and_kill(
        self,
        processes: int,
        config: Path,
        arguments: Sequence[object],
        when: Callable[[], bool],
        *,
        program: str = PROGRAM,
    ) -> None:
        """Run the program, and kill all ranks with SIGKILL as soon as `when` holds."""
        deadline = time.monotonic() + LIMIT_S
        with self._begun(processes, config, arguments, program=program) as (workers, logs):
            while not when():
                said = "".join(log.read_text(errors="replace") for log in logs)
                assert not wait([worker.channel for worker in workers], 0.005), f"ended before it was killed:\n{said}"
                assert time.monotonic() < deadline, f"nothing to kill in time:\n{said}"
            for worker in workers:
                worker.kill()

    @contextmanager
    def _begun(
        self,
        processes: int,
        config: Path,
        arguments: Sequence[object],
        flags: Sequence[str] = (),
        fault: str | None = None,
        program: str = PROGRAM,
    ) -> Iterator[tuple[list["_Worker"], list[Path]]]:
        """The ranks of a run, and where their output goes; an error in here kills them."""
        environments = launch_environments(config, processes, (*FLOAT32, *flags))
        workers = self._ready(processes)
        number = next(self._numbers)
        logs = [self._folder / f"run-{number}-rank-{rank}" for rank in range(processes)]
        try:
            for worker, variables, log in zip(workers, environments, logs, strict=True):
                log.touch()
                worker.channel.send((list(map(str, arguments)), variables, program, fault, str(log)))
            yield workers, logs
        except BaseException:  # pytest's own limit, say: they are in the middle of something
            for worker in workers:
                worker.kill()
            raise

    def _ready(self, count: int) -> list["_Worker"]:
        self._workers = [worker for worker in self._workers if worker.lives()]
        while len(self._workers) < count:  # all of them first, so that they import at the same time
            self._workers.append(_Worker(self._folder / f"worker-{next(self._numbers)}"))
        for worker in self._workers[:count]:
            worker.await_start()
        return self._workers[:count]

    def _statuses(self, workers: list["_Worker"], logs: list[Path], timeout_s: float) -> tuple[int, ...]:
        statuses: dict[int, int] = {}
        waiting = {worker.channel: rank for rank, worker in enumerate(workers)}
        deadline = time.monotonic() + timeout_s
        without_an_answer, words = TIMED_OUT, f"did not end within {timeout_s} s"
        while waiting and (left := deadline - time.monotonic()) > 0:
            for channel in wait(list(waiting), left):
                rank = waiting.pop(channel)
                statuses[rank] = workers[rank].answer()
                if not workers[rank].lives():
                    _append(logs[rank], f"rank {rank}: its process died\n")
                in_grace = time.monotonic() + _GRACE_S
                if statuses[rank] and in_grace < deadline:
                    deadline = in_grace
                    without_an_answer, words = ENDED, f"did not follow rank {rank}, which had failed"
        for rank in waiting.values():
            statuses[rank] = without_an_answer
            _append(logs[rank], f"rank {rank} {words}; it stood at:\n")
            workers[rank].dump_stacks()
        if waiting:
            time.sleep(1)  # for the stacks
        for rank in waiting.values():
            workers[rank].kill()
        return tuple(statuses[rank] for rank in range(len(workers)))


def _append(log: Path, words: str) -> None:
    with log.open("a") as file:
        file.write(words)


class _Worker:
    """A process, seen from outside; its own output goes to `log`."""

    def __init__(self, log: Path) -> None:
        log.touch()
        self._log = log
        self._started = False
        self.channel, theirs = Pipe()
        self._process = fork_server().Process(target=_serve, args=(theirs, str(log)))
        self._process.start()
        theirs.close()

    def await_start(self) -> None:
        """Wait for its imports."""
        if not self._started:
            self._started = self.channel.poll(_START_S) and self.answer() == 0
            assert self._started, f"a worker did not start:\n{self._log.read_text()}"

    def answer(self) -> int:
        """The status of the run that ended, or its own if it died."""
        try:
            return int(self.channel.recv())
        except (EOFError, ConnectionError):
            self._process.join()
            status = self._process.exitcode or 0
            return 128 - status if status < 0 else max(status, 1)

    def lives(self) -> bool:
        """Whether it can run something."""
        return self._process.is_alive()

    def dump_stacks(self) -> None:
        """Have every thread's stack written to the output of its run."""
        os.kill(self._process.pid, signal.SIGUSR2)

    def dismiss(self) -> None:
        """Ask it to end."""
        if self.lives():
            self.channel.send(None)

    def end(self) -> None:
        """Wait a little for its end, then kill it."""
        self._process.join(10)
        self.kill()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()
        self._process.join()
        self.channel.close()


def _serve(channel: Connection, log: str) -> None:
    """Inside a worker: run what the parent sends until it sends None."""
    os.chdir(ROOT)
    variables = without_launch(environment())
    os.environ.clear()
    os.environ.update(variables)
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)  # 2: where standard error goes at that time
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, requests), daemon=True).start()

    import torch

    from pretrain.report import page
    from zymogen.command_line import command
    from zymogen.trainer.checkpoint import saver

    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    measure_peak_once()
    command._PATIENCE_S = 0.0  # each rank has an output of its own, so none waits for rank 0 to speak first
    saver._PATIENCE_S = 60.0  # as in conftest.py
    page.write_last_report = lambda root: None  # a third of a second a run; the tests of the report draw it
    gc.freeze()  # half of a run of seconds went into collecting what is imported, a few times
    channel.send(0)
    while (request := requests.get()) is not None:
        arguments, variables, program, fault, log = request
        with _output_to(log), mock.patch.dict(os.environ, variables), _fault(fault):
            for rollbacks in itertools.count():
                with forgotten(variables | ({ROLLBACKS: str(rollbacks)} if rollbacks else {})):
                    status = _status(program, arguments)
                if status is not None:
                    break
        channel.send(status)


def _listen(channel: Connection, requests: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            requests.put(channel.recv())
    except (EOFError, ConnectionError):
        os._exit(1)  # whoever asked is gone, and a run that hangs would stay for hours


def _status(program: str, arguments: list[str]) -> int | None:
    """What the interpreter would exit with; None where the program would be replaced by a fresh process of it."""
    try:
        return int(importlib.import_module(program).main(arguments))
    except RollbackError:
        return None
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


@contextmanager
def _fault(names: str | None) -> Iterator[None]:
    with ExitStack() as faults:
        if names is not None:
            from support.wrong_engine import FAULTS

            for name in names.split("+"):
                faults.enter_context(FAULTS[name]())
        yield


@contextmanager
def _output_to(log: str) -> Iterator[None]:
    """Standard output and error go to a file, that of C++ as well. An error in here ends the worker, and goes there."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kept = os.dup(1), os.dup(2)
    os.dup2(file, 1)
    os.dup2(file, 2)
    yield
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)
    for descriptor in (file, *kept):
        os.close(descriptor)
