"""The flag `--record` of every benchmark, which also writes its last line to `benchmarks/results/NAME.json`.

In: a benchmark's parser, and later its last line. Out: the line with its command, commit and date, in place of what the
file has of the same command. Kept: runs and claims of other commands.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import which
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TRIES = ("quick", "dry_run", "rows")
"""Options of runs that only show that a benchmark works."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Command, commit and date of a run."""

    command: str
    commit: str
    date: str


def parse_options(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a benchmark's options together with `--record`.

    Args:
        parser: that of the benchmark.
        words: arguments; those of the process if None.

    Returns:
        The options; `record` is the run's `Provenance`, or None if its result is only printed.
    """
    parser.add_argument("--record", action="store_true", help="write the last line to benchmarks/results, too")
    options = parser.parse_args(words)
    tried = [name for name in TRIES if getattr(options, name, None)]
    if options.record and tried:
        parser.error(f"--record keeps measurements; --{tried[0].replace('_', '-')} makes none")
    options.record = provenance(sys.argv[1:] if words is None else words) if options.record else None
    return options


def provenance(words: Sequence[str]) -> Provenance:
    """Return command, commit and date of this process."""
    found = sys.modules["__main__"].__spec__
    module = found.name.removesuffix(".__main__") if found else Path(sys.argv[0]).stem
    command = " ".join(["python -m", module, *(shlex.quote(without_folders(w)) for w in words if w != "--record")])
    return Provenance(command, commit(), datetime.now(UTC).date().isoformat())


def commit() -> str:
    """Return the commit of this checkout, with "-dirty" if its code differs; "unknown" without git."""
    if which("git") is None:
        return "unknown"
    head = _git("rev-parse", "--short", "HEAD").stdout.strip() or "unknown"
    differs = _git("diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results/*.json", ":!docs").returncode == 1
    return head + "-dirty" * differs


def without_folders(word: str) -> str:
    """Return a word of a command without the folders of this machine: `/some/where/a.gz` is `a.gz`."""
    return re.sub(r"(?<![^=,])(?:\.{0,2}/)(?:[^/]+/)*(?=[^/])", "", word)


def write(name: str, content: Mapping[str, Any], of: Provenance, folder: Path | None = None) -> Path:
    """Put a benchmark's last line into its file, in place of what the file has of the same command.

    Args:
        name: of the benchmark, and of the file.
        content: the last line.
        of: command, commit and date.
        folder: `benchmarks/results` if None.
    """
    path = (folder or FOLDER) / f"{name}.json"
    held = json.loads(path.read_text("utf-8")) if path.exists() else {}
    kept = {kind: [one for one in held.get(kind, ()) if one["command"] != of.command] for kind in ("claims", "runs")}
    kept["runs"].append({**asdict(of), **content})
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def _git(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
