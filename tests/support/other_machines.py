"""A row of the table of other people's machines: a situation, a command in it, and how that must end."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.launching import Launched, environment
from support.places import ROOT

FAULTS = range(1, 31)
"""Numbers of the faults that were met on other people's machines; each has a row in `tests/machines/`."""
RECIPE = """
[run]
directory = "runs/t"
[model]
preset = "modern_60k"
[data]
sources = ["ok.fasta"]
validation_fraction = 0.2
bin_tokens = 1024
bins_per_step = 2
crop_tokens = 128
[schedule]
total_tokens = 4_000
"""
LIMIT_S = 200


@dataclass(frozen=True, kw_only=True)
class Row:
    """One situation; the folder of a row has ``ok.fasta``, 60 proteins, and ``tiny.toml``, a run of two steps."""

    fault: int
    """Its number, one of `FAULTS`."""
    situation: str
    words: Sequence[str] = ()
    """What follows ``python``; ``{folder}`` is the row's folder. Without words, `check` does everything."""
    prepare: Callable[[Path], object] = lambda folder: None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables on top; ``{folder}`` as in `words`; an empty value stays a variable that is empty."""
    shell: str = '"$@"'
    """What bash runs, with the command as ``"$@"`` and ROOT and FOLDER as variables: redirections, limits, mounts."""
    needs: Callable[[], str] = lambda: ""
    """Why this machine cannot show the situation; empty where it can."""
    slow: bool = False
    """Whether it takes more than some seconds."""
    status: int = 0
    says: Sequence[str] = ()
    """Regular expressions that the output has, as whole output: standard output and error together."""
    never: Sequence[str] = ("Traceback",)
    """Regular expressions that it does not have."""
    check: Callable[[Path, Launched], object] = lambda folder, ended: None
    """What else must hold: asserts."""

    def run(self, folder: Path) -> None:
        if reason := self.needs():
            pytest.skip(reason)
        write_inputs(folder)
        self.prepare(folder)
        ended = Launched(0, "")
        if self.words:
            ended = run([sys.executable, *self.words], folder, self.environment, self.shell)
            assert ended.status == self.status, ended.output
        for pattern in self.says:
            assert re.search(pattern, ended.output), (pattern, ended.output)
        for pattern in self.never:
            assert not re.search(pattern, ended.output), (pattern, ended.output)
        self.check(folder, ended)


def table(rows: Sequence[Row]) -> pytest.MarkDecorator:
    """The rows as parameters of a test: ``@table(ROWS)``, ``def test_row(row, tmp_path): row.run(tmp_path)``."""
    assert all(row.fault in FAULTS for row in rows)

    def parameter(row: Row) -> Any:
        marks = [pytest.mark.slow] if row.slow else [pytest.mark.launch] if row.words else []
        return pytest.param(row, id=f"{row.fault}-{row.situation.replace(' ', '_')}", marks=marks)

    return pytest.mark.parametrize("row", list(map(parameter, rows)))


def write_inputs(folder: Path) -> None:
    """The inputs of every row."""
    draw = random.Random(0)
    proteins = ("".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=90)) for _ in range(60))
    (folder / "ok.fasta").write_text("".join(f">p{i}\n{protein}\n" for i, protein in enumerate(proteins)))
    (folder / "tiny.toml").write_text(RECIPE)


def run(words: Sequence[str], folder: Path, more: Mapping[str, str], shell: str = '"$@"') -> Launched:
    """Run a command in a folder, through bash; neither waits for input."""

    def filled(text: str) -> str:
        return text.replace("{folder}", str(folder))

    added = {"ROOT": str(ROOT), "FOLDER": str(folder), **{name: filled(value) for name, value in more.items()}}
    done = subprocess.run(
        ["bash", "-c", shell, "bash", *map(filled, words)],
        cwd=folder,
        env={**environment(), **added},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
    )
    return Launched(done.returncode, done.stdout.decode("utf-8", "replace"))


def no_mounts() -> str:
    """Why nothing can be mounted here; empty where it can."""
    done = subprocess.run(["unshare", "-m", "mount", "--bind", "/proc", "/proc"], capture_output=True, text=True)
    return f"no right to mount ({done.stderr.strip()})" if done.returncode else ""


def no_cgroups() -> str:
    """Why no cgroup can be made here; empty where one can."""
    for name in ("memory", "cpu"):
        if not os.access(f"/sys/fs/cgroup/{name}", os.W_OK) or not Path(f"/sys/fs/cgroup/{name}/tasks").exists():
            return f"/sys/fs/cgroup/{name} is no cgroup (v1) that this user may change"
    return ""
