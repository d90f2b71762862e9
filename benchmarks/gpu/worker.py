"""The process that runs the checks of `benchmarks.gpu`, one after the other, until all are done or time is up.

In: checks, a folder. Out: its results, written after every row. Kept: nothing except what torch has cached.

A check that raises becomes a row with its error, and one that takes too long is interrupted. An error that leaves the
GPU unusable for this process, such as an illegal address, ends it, and `benchmarks.gpu` starts another for the rest.
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from benchmarks.gpu.machine import Place, facts, has
from benchmarks.gpu.results import Bar, Finding, Results, Table
from zymogen.trainer.run.versions import versions

OnCpu = Literal["judged", "run", "never"]

DEVICE_LOST = 70
"""Exit status of a worker whose device can no longer be used."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check, which gives one or more rows."""

    name: str
    run: Callable[[Place], Iterator[Finding | Table]]
    seconds: float
    """A generous time on an H200: it does not begin with less left, and is interrupted after over twice as long."""
    bar: Bar | None = None
    on_cpu: OnCpu = "never"
    """In a dry run: the bar is judged; or the check runs, but its figures mean nothing; or it does not run."""
    needs: tuple[str, ...] = ()
    """Packages that may be absent."""


class OutOfTime(BaseException):
    """A check took too long. Not an `Exception`, because the compiler would catch that as its own."""


def work(checks: Sequence[Check], folder: Path, deadline: float, *, dry: bool) -> int:
    """Run what waits; the first worker of a folder writes its plan. Returns the exit status.

    Args:
        checks: checks, in the order in which they run.
        folder: folder of the results.
        deadline: end of the time, in seconds since the epoch.
        dry: use the CPU although there may be a GPU.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and not dry else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    if (folder / "results.json").exists():
        results = Results.load(folder)
    else:
        kind = "GPU" if device.type == "cuda" else "dry run on the CPU: shapes shrink, and speed is not judged"
        results = Results(folder, {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "kind": kind, **facts(device)})
        results.about |= {name: version for name, version in versions().items() if name != "torch"}
        results.plan([(check.name, check.bar) for check in checks])
    place, parent = Place(device, results), os.getppid()
    for check in checks:
        if check.name not in results.waiting():
            continue
        if os.getppid() != parent:  # the watching process is gone, and nothing would end a check that hangs
            return 1
        reason = _obstacle(check, place, deadline - time.time())
        if reason:
            results.end(check.name, "not measured", reason)
        elif not run(check, place, min(deadline - time.time(), 2 * check.seconds + 20)):
            return DEVICE_LOST
    return 0


def _obstacle(check: Check, place: Place, left: float) -> str | None:
    missing = [package for package in check.needs if not has(package)]
    if missing:
        return f"no {' and no '.join(missing)} here"
    if place.dry and check.on_cpu == "never":
        return "needs a GPU"
    if left < (1 if place.dry else check.seconds):
        return f"out of time, {max(0, left):.0f} s were left and it may take {check.seconds:.0f}"
    return None


def run(check: Check, place: Place, limit: float) -> bool:
    """Run one check and write each row as it comes. Returns whether the device can still be used."""
    results, began = place.results, time.time()
    results.start(check.name, began + limit)
    torch.set_float32_matmul_precision("highest")  # a check that sets a model up as a run does leaves TF32 on

    def interrupt(_: int, __: FrameType | None) -> None:
        raise OutOfTime

    previous, timer = signal.signal(signal.SIGALRM, interrupt), signal.setitimer(signal.ITIMER_REAL, limit)
    failure = None
    try:
        for found in check.run(place):
            if isinstance(found, Finding) and found.judged and place.dry and check.on_cpu == "run":
                note = f"a dry run gave {found.value:.3g}; {found.note}" if found.value is not None else found.note
                found = replace(found, value=None, note=note)
            results.add(check.name, found, time.time() - began)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except OutOfTime:
        failure = f"interrupted after {limit:.3g} s"
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        traceback.print_exc(file=sys.stderr)
        failure = one_line(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    if failure is None:
        results.finish(check.name)
    else:
        results.end(check.name, "failed", failure, time.time() - began)
    return _cleared(place)


def one_line(error: BaseException) -> str:
    """The error in one line, with the last line of this project's code that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    root = str(Path(__file__).resolve().parents[2])
    ours = [frame for frame in frames if frame.filename.startswith(root) and ".venv" not in frame.filename]
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"


def _cleared(place: Place) -> bool:
    """Free what a check held. False if the device no longer answers."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # the code of one shape would count against the limit of the next
    gc.collect()
    if place.device.type != "cuda":
        return True
    try:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize(place.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place.device)
    except Exception as error:
        print(f"the GPU is lost to this process: {one_line(error)}", file=sys.stderr)
        return False
    return True
