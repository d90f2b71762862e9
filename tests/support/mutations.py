"""Small deliberate breaks of the program, each of which a test must notice.

    python -m tests.support.mutations [--only C4] [--jobs 2] [--check]

In: `tests/mutations.toml`, and the tiers of tests as the Makefile has them. Out: a table of which test noticed what, in
which tier and after how many seconds; the last line is one JSON object. The exit status is 1 where a mutation went
unnoticed. Kept: `runs/mutations.jsonl`, so that a second call continues where the first was interrupted. A result holds
for one tree.

A mutation is made in a copy of the tree. The tests that it names are run first, then all of `make test`. What these let
through is shown to the named tests of the larger tiers that `.ci/run` has. In the end, every test that noticed
something must pass in a copy without any mutation.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIST, RESULTS = "tests/mutations.toml", "runs/mutations.jsonl"
LIMIT_S = 1500
_OURS = "--ignore=tests/test_mutations.py"  # a mutated tree lacks the text that the mutation replaced
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "runs", ".*_cache", ".hypothesis", "*.egg-info")

Mutation = dict[str, Any]
"""A table of the list: contract, breaks (a sentence), file, old, new, tests."""


def mutations(root: Path = ROOT) -> list[Mutation]:
    return list(tomllib.loads((root / LIST).read_text())["mutation"])


def misfits(root: Path = ROOT) -> list[str]:
    """What in the list does not fit the tree: a text that is not there exactly once, a test that is not there."""
    found = []
    for mutation in mutations(root):
        path, old = root / mutation["file"], mutation["old"]
        times = path.read_text().count(old) if path.is_file() else 0
        if times != 1 or old == mutation["new"]:
            found.append(f"{mutation['file']} has {times} times, and must have once, to be replaced: {old!r}")
        found += [f"{mutation['file']}: no test {name}" for name in mutation["tests"] if not (root / name).is_file()]
    return found


def tiers(root: Path) -> dict[str, str]:
    """Make's targets that run tests, smallest first, and the marks that each chooses."""
    return dict(
        re.findall(r"^([\w-]+): setup ##.*\n\t\$\(PYTEST\) -m \"(.*)\"$", (root / "Makefile").read_text(), re.M)
    )


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, with what numba has compiled; for git it is a checkout."""
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT)
        (copy / ".venv").symlink_to(sys.prefix, target_is_directory=True)
        subprocess.run(["git", "init", "-q", str(copy)], check=True)
        yield copy


def failure(copy: Path, marks: str, names: Sequence[str]) -> str | None:
    """The first test that fails in a copy of the tree, None if none does."""
    words = ["-m", "pytest", "-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", _OURS]
    words += [f"--basetemp={copy.parent / 'tmp'}", "-m", marks, *names]
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'tests'}", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)  # what is asked of a tier, such as .ci/run's limit, is not asked of a copy
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, *words], cwd=copy, env=environment, start_new_session=True, **piped)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"what was still running after {LIMIT_S} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode in (0, 5):  # 5: none of those named is in this tier
        return None
    if found := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M):
        return found[1]
    raise RuntimeError(f"pytest ended with {process.returncode} and named no test:\n{output[-2000:]}")


def tried(mutation: Mutation) -> dict[str, Any]:
    """Which test noticed a mutation, in which tier, and after how long; None and None where none did."""
    began, by, tier = time.monotonic(), None, None
    with copied() as copy:
        path = copy / mutation["file"]
        path.write_text(path.read_text().replace(mutation["old"], mutation["new"]))
        if path.parent == copy / "data":  # the machine code of other modules holds its constants and functions
            for kernel in copy.rglob("*.nb[ci]"):
                kernel.unlink()
        marks, named = tiers(copy), mutation["tests"]
        larger = [(tier, named) for tier in marks if tier not in ("test", "prove")]  # .ci/run's
        for tier, names in [("test", named), ("test", ["tests"]), *larger]:
            if by := failure(copy, marks[tier], names):
                break
    return {"by": by, "tier": tier if by else None, "seconds": round(time.monotonic() - began, 1)}


def fingerprint() -> bytes:
    """Of what a result depends on: all files of the tree, the list apart."""
    words = ["git", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    paths = sorted(ROOT / name for name in listed if name != LIST and (ROOT / name).is_file())
    return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)


def table(chosen: Sequence[Mutation], jobs: int) -> Iterator[dict[str, Any]]:
    """A row for each mutation, in their order, as soon as it is known."""
    results, of_tree = ROOT / RESULTS, fingerprint()
    results.parent.mkdir(exist_ok=True)
    lines = results.read_text().splitlines() if results.exists() else []
    known = {(made := json.loads(line)).pop("key"): made for line in lines}

    def row(mutation: Mutation) -> dict[str, Any]:
        key = hashlib.sha256(of_tree + json.dumps(mutation, sort_keys=True).encode()).hexdigest()
        if key not in known:
            known[key] = {"contract": mutation["contract"], "breaks": mutation["breaks"], **tried(mutation)}
            with results.open("a") as file:
                file.write(json.dumps({"key": key, **known[key]}) + "\n")
        return known[key]

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(row, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", metavar="WORD", help="contracts, or words of what breaks or of its file")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (default 2)")
    parser.add_argument("--check", action="store_true", help="run nothing; say whether the list fits the tree")
    options = parser.parse_args()
    if options.check or misfits():
        sys.exit("\n".join(misfits()) or 0)

    def is_chosen(mutation: Mutation) -> bool:
        text = f"{mutation['breaks']} {mutation['file']}"
        return not options.only or any(word == mutation["contract"] or word in text for word in options.only)

    began, rows, control = time.monotonic(), [], None
    noticing = set()
    for mutation, row in zip(chosen := list(filter(is_chosen, mutations())), table(chosen, options.jobs), strict=True):
        rows.append(row)
        if "::" in (row["by"] or ""):  # the test of a command in README.md is named after it
            is_page = mutation["file"].endswith(".md")
            noticing.add(row["by"].replace(mutation["new"], mutation["old"]) if is_page else row["by"])
        noticed = f"{row['tier']}: {row['by']}" if row["by"] else "NOT NOTICED"
        print(f"{row['contract']:4}{row['seconds']:6.1f} s  {row['breaks']}\n{'':14}{noticed}", flush=True)
    if noticing:
        with copied() as copy:
            control = failure(copy, "", sorted(noticing))
    if control:
        print(f"{control} fails without a mutation, too, so that it notices nothing")
    counts = Counter(row["tier"] or "none" for row in rows)
    facts = {"mutations": len(rows), "tiers": counts, "control": control, "seconds": round(time.monotonic() - began)}
    print(json.dumps({**facts, "rows": rows}))
    sys.exit(bool(control or counts["none"]))


if __name__ == "__main__":
    main()
