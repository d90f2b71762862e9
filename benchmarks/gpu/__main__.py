"""The GPU's tests, parity and benchmarks in one run, on a machine as it is found: `make gpu`.

    python3 -m benchmarks.gpu [--out gpu_results] [--budget-s 460] [--only NAME ...] [--dry-run]

It needs torch 2.11 or newer and NumPy; if another package is not installed, the rows that need it are left out. It
writes a Markdown table and a JSON file, `results.md` and `results.json`, after every row, so that a run that is killed
keeps what it had; as every benchmark does, it prints one JSON object last. Without a GPU, or with ``--dry-run``, all
that can run on a CPU does, on tiny shapes, and no speed is judged.

The checks of `benchmarks.gpu.rows` run in another process (`benchmarks.gpu.worker`). This one watches: a worker that
crashes or hangs loses only the row that it was at, and another one continues with the next. The exit status is 0 unless
a row failed; a bar that is missed is no failure.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from benchmarks.gpu.results import RESULTS, Results, is_written_here, shown
from benchmarks.report import report
from benchmarks.results.record import parse_options

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("torch", "numpy")
GRACE = 10
"""Seconds between the moment when a worker should have interrupted a row itself and that when it is killed."""


def supervise(command: Sequence[str], folder: Path, deadline: float) -> Results:
    """Start workers with `command` until no row waits; rows that can no longer be measured are marked."""
    last = None
    while True:
        worker = subprocess.Popen(command, cwd=ROOT)
        try:
            status = _watch(worker, folder, deadline)
        except KeyboardInterrupt:
            worker.kill()
            worker.wait()
            if not (folder / "results.json").exists():
                raise
            return _close(folder, "the run was interrupted")
        if not (folder / "results.json").exists():
            raise RuntimeError(f"the worker {_ended(status)} before it had planned its rows")
        results = Results.load(folder)
        running = results.running()
        if running:
            results.end(running.check, "failed", f"its process {_ended(status)}")
        waiting = results.waiting()
        if not waiting or waiting == last or time.time() > deadline:
            return _close(folder, "out of time" if time.time() > deadline else f"the worker {_ended(status)}")
        last = waiting


def _ended(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"


def _watch(worker: "subprocess.Popen[bytes]", folder: Path, deadline: float) -> int:
    """Wait for a worker, kill it if it hangs, and return its exit status."""
    while True:
        try:
            return worker.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            running = Results.load(folder).running() if (folder / "results.json").exists() else None
            until = running.must_end if running and running.must_end else deadline
            if time.time() > until + GRACE:
                worker.kill()


def _close(folder: Path, reason: str) -> Results:
    """Mark the rows that were not reached."""
    results = Results.load(folder)
    running = results.running()
    if running:
        results.end(running.check, "failed", reason)
    for check in sorted(results.waiting()):
        results.end(check, "not measured", reason)
    return results


def main(words: Sequence[str] | None = None) -> int:
    """Run, watch, report."""
    parser = argparse.ArgumentParser(description="The GPU's tests, parity and benchmarks in one run.")
    parser.add_argument("--out", type=Path, default=Path("gpu_results"), help="folder of results.md and results.json")
    parser.add_argument("--budget-s", type=float, default=460, help="rows that do not fit are not measured")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only checks whose names begin with NAME")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny shapes")
    parser.add_argument("--list", action="store_true", help="print the names of all checks")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)  # of a worker
    options = parse_options(parser, words)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"error: {sys.executable} has no {' and no '.join(missing)}; this needs torch 2.11 or newer and NumPy, and "
            "nothing else: name an interpreter that has them, as in make gpu PYTHON=.venv/bin/python",
            file=sys.stderr,
        )
        return 2
    if options.list or options.deadline:
        from benchmarks.gpu.rows import CHECKS
        from benchmarks.gpu.worker import work

        if options.list:
            print("\n".join(check.name for check in CHECKS))
            return 0
        wanted = [check for check in CHECKS if check.name.startswith(tuple(options.only or [""]))]
        return work(wanted, options.out, options.deadline, dry=options.dry_run)
    began = time.time()
    folder = options.out.resolve()
    if any((folder / name).exists() for name in RESULTS):
        if not is_written_here(folder):
            found = f"has a {' or '.join(RESULTS)} that this program did not write"
            print(f"error: {folder} {found}; choose another --out", file=sys.stderr)
            return 2
        for name in RESULTS:
            (folder / name).unlink(missing_ok=True)
    deadline = began + options.budget_s
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(folder), "--deadline", str(deadline)]
    command += ["--dry-run"] if options.dry_run else []
    command += ["--only", *options.only] if options.only else []
    signal.signal(signal.SIGTERM, _interrupt)
    results = supervise(command, folder, deadline)
    results.about["seconds"] = round(time.time() - began)
    results.write()
    failed = [line.row for line in results.lines if line.status == "failed"]
    print(f"{results.about['seconds']} s; {folder}/results.md and results.json")
    print("\n".join(f"{line.row}: {shown(line)}; {line.note}" for line in results.lines if line.status == "failed"))
    report("gpu", list(results.judged()), str(results.about.get("GPU", "")), record=options.record)
    return 1 if failed else 0


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
