"""A campaign: runs of the real program whose ranks are killed with SIGKILL, started again, and killed again.

In: a recipe, an engine, a seed. Out: a line for each run, with its kills. Kept: that line, in a ledger, so that several
sittings add up; and the ends of runs that nobody killed, to compare with.

A third of the kills wait until a save is on its way. The victim is one rank, drawn anew each time; the others are
killed a moment later, as their launcher would do. Each rank is forked from this process, which has imported the program
and computed nothing: a start takes what the program itself does, without the seconds that Python and torch take.
"""

import gc
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.batches.contents import MaskedContents
from data.batches.masking import BertMask
from data.batches.packed import TokenArrays, packed
from pretrain.recipe import Recipe
from support.forked import forked
from support.launching import FLOAT32, IMPORTED, launch_environments, lines
from support.places import ROOT
from zymogen.settings.toml_file import read
from zymogen.trainer.checkpoint.commit import TEMPORARY
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.manifest import CheckpointManifest

EVERY = 4
"""Steps between two saves."""
_LONGEST_S = 1.2
"""A kill that waits for no save comes within this time after the start, at any moment of it."""
_SAVE_S = 0.03
"""A kill of a save comes within this time after its folder appeared."""
_BY_A_RUN = (
    *("numba", "pydantic.dataclasses", "pretrain.__main__", "data.sources.resolve", "pretrain.proposal.recipe_text"),
    *("pretrain.export.export", "pretrain.report.page", "jinja2", "matplotlib.figure", "matplotlib.patches"),
)
"""What a run imports beside that, at its start and, the second line, at its end: 2.7 of a short run's 6.6 seconds."""
OPTIONS = (f"run.checkpoint_every={EVERY}", "run.log_every=1", "run.validation_sequences=4", "--despite-failures")


@dataclass(frozen=True, kw_only=True)
class Killed:
    """One run that was killed until it ended."""

    engine: str
    ranks: int
    steps: int
    seed: int
    kills: int
    in_saves: int
    """Kills that left a save half-written."""
    before_training: int
    """Kills before the first step of their start."""
    most_lost: int
    """Most steps that one kill undid."""
    seconds: float
    same: bool
    """Whether all files of its last checkpoint, so weights, moments and chain, are the uninterrupted run's."""


class Campaign:
    """Kills runs of one recipe.

    Args:
        folder: where runs lie; what is there of an earlier sitting is used.
        recipe: a file of a recipe, whose run directory is replaced.
        tokens: length of a run.
    """

    def __init__(self, folder: Path, recipe: Path, tokens: int) -> None:
        self._folder, self._recipe, self._tokens = folder, recipe, tokens
        self._references: dict[tuple[str, int], CheckpointManifest] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*IMPORTED, *_BY_A_RUN):
            importlib.import_module(name)
        settings, documents = read(Recipe, recipe).data, [np.full(4, 5, np.uint8)]
        contents = MaskedContents(TokenArrays(documents), settings, BertMask(settings.mask), 0)
        next(packed(contents, np.array([4])))  # loads what numba has compiled, a third of a second for each start

    def killed(self, engine: str, ranks: int, seed: int, most_kills: int) -> Killed:
        """Kill one run, at most so often, until it ends; compare it with one that nobody killed.

        Raises:
            AssertionError: a start ended by itself other than well, or lost more than it may.
        """
        reference = self.reference(engine, ranks)
        draw, run = random.Random(seed), self._folder / f"{engine}-{ranks}-{seed}"
        shutil.rmtree(run, ignore_errors=True)
        began, kills, in_saves, early = time.monotonic(), 0, 0, 0
        most_lost, reached, num_starts, skipped = 0, 0, 0, 0
        while True:
            pids = self.start(run, engine, ranks)
            is_killed = kills < most_kills and self._kill(run, pids, draw)
            if not is_killed:
                self.await_end(run, pids)
            starts = [line for line in lines(run / "attempts.jsonl") if "base_step" in line]
            if is_killed and len(starts) == num_starts:  # before it was numbered: what was lost, the next one shows
                kills, early = kills + 1, early + 1
                continue
            num_starts, base = len(starts), starts[-1]["base_step"]
            lost = max(reached - base, 0)
            # The interval that was begun, to its last step, and the one before it, whose save was being written; a save
            # that takes longer than the next one waits for it costs one more.
            assert lost <= (2 + skipped) * EVERY, f"{run}: {lost} steps were lost by kill {kills}"
            most_lost = max(most_lost, lost)
            steps = [line for line in lines(run / "metrics.jsonl") if line["attempt"] == len(starts)]
            if not is_killed:
                break
            kills, early = kills + 1, early + (not steps)
            in_saves += any(run.glob(f"checkpoints/{TEMPORARY}*"))
            reached = max((line["step"] for line in steps), default=base)
            skipped = int(max((line.get("skipped_saves", 0) for line in steps), default=0))
        end = verify(find(run / "checkpoints")[0]).manifest
        found = Killed(
            engine=engine,
            ranks=ranks,
            steps=end.step,
            seed=seed,
            kills=kills,
            in_saves=in_saves,
            before_training=early,
            most_lost=most_lost,
            seconds=round(time.monotonic() - began, 1),
            same=end.files == reference.files,
        )
        if found.same:
            shutil.rmtree(run)
        return found

    def reference(self, engine: str, ranks: int) -> CheckpointManifest:
        """The last checkpoint of a run that nobody killed."""
        if (engine, ranks) not in self._references:
            run = self._folder / f"{engine}-{ranks}"
            if not (run / "export").exists():
                shutil.rmtree(run, ignore_errors=True)
                self.await_end(run, self.start(run, engine, ranks))
            self._references[engine, ranks] = verify(find(run / "checkpoints")[0]).manifest
        return self._references[engine, ranks]

    def start(self, run: Path, engine: str, ranks: int) -> list[int]:
        """Fork the ranks of a start; what they print is beside the run directory."""
        words = [str(self._recipe), *OPTIONS, f"run.directory={run}", f"schedule.total_tokens={self._tokens}"]
        config = ROOT / f"accelerate_configs/{engine}.yaml"
        run.parent.mkdir(exist_ok=True)
        gc.freeze()
        log = run.with_suffix(".log")
        environments = launch_environments(config, ranks, FLOAT32)
        return [forked(lambda variables=variables: _rank(words, variables, log)) for variables in environments]

    def _kill(self, run: Path, pids: list[int], draw: random.Random) -> bool:
        """Kill a rank when it is time, then the others; whether that came before their end. Takes out who is gone."""
        in_save, victim = draw.random() < 1 / 3, draw.randrange(len(pids))
        deadline = time.monotonic() + draw.uniform(0, _LONGEST_S)
        if in_save:
            known = {path.name for path in run.glob(f"checkpoints/{TEMPORARY}*")}
            while not {path.name for path in run.glob(f"checkpoints/{TEMPORARY}*")} - known:
                if _has_ended(pids):
                    return False
                time.sleep(0.001)
            deadline = time.monotonic() + draw.uniform(0, _SAVE_S)
        while time.monotonic() < deadline:
            if _has_ended(pids):
                return False
            time.sleep(0.001)
        os.kill(pids[victim], signal.SIGKILL)
        time.sleep(draw.choice((0.0, 0.02, 0.1)))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        ends = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
        pids.clear()
        is_killed = -signal.SIGKILL in ends  # else all of them had just ended
        assert is_killed or ends == {0}, run.with_suffix(".log").read_text()[-4000:]
        return is_killed

    def await_end(self, run: Path, pids: Sequence[int]) -> None:
        """Wait until all ranks have ended well.

        Raises:
            AssertionError: one has not.
        """
        ends = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids if pid}
        assert set(ends.values()) <= {0}, run.with_suffix(".log").read_text()[-4000:]


def _has_ended(pids: Sequence[int]) -> bool:
    """Whether any of these children has, without waiting for it or letting it go."""
    return any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids)


def _rank(words: Sequence[str], variables: dict[str, str], log: Path) -> None:
    """Inside of a fork: the program, as launched."""
    os.environ.update(variables)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))  # not pytest's
    from accelerate.state import AcceleratorState, GradientState

    from pretrain.__main__ import main

    AcceleratorState._reset_state(reset_partial_state=True)  # of a run that this process trained before it was forked
    GradientState._reset_state()
    os._exit(main(list(words)))


class Ledger:
    """The runs of one campaign, those of earlier sittings too.

    Args:
        path: of a file, which may hold other campaigns as well.
        seed: of the campaign.
        engine: that its runs train under.
    """

    def __init__(self, path: Path, seed: int, engine: str) -> None:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        self._path = path
        self.seed = seed
        self._key = {"campaign": seed, "engine": engine, "program": described.stdout.strip()}

    def entries(self) -> list[dict[str, Any]]:
        """What was done by this version of the program."""
        return [entry for entry in lines(self._path) if self._key.items() <= entry.items()]

    def add(self, found: Killed) -> None:
        """Add a run."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({**self._key, **asdict(found)}) + "\n")


def continued(ledger: Ledger, campaign: Campaign, worlds: Sequence[tuple[str, int]], kills: int) -> Iterator[Killed]:
    """Runs until the ledger has so many kills."""
    while (done := sum(entry["kills"] for entry in ledger.entries())) < kills:
        number = len(ledger.entries())
        engine, ranks = worlds[number % len(worlds)]
        found = campaign.killed(engine, ranks, ledger.seed * 1_000_000 + number, kills - done)
        ledger.add(found)
        yield found
