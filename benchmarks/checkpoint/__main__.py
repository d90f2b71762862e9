"""What a checkpoint costs a run: how long steps wait, and how fast they are beside it; against `save_state`.

    python -m benchmarks.checkpoint
    python -m benchmarks.checkpoint --quick

In: models of presets with the moments of AdamW, drawn bins. Out: a table and the JSON line of `benchmarks.report`.
Kept: nothing; both sides write to the temporary directory.

A round takes a step alone, begins a save, takes steps beside it until it is published, and saves by Accelerate's
`save_state`, all of whose time is a stall. Ours is what a run does: `checkpoint.writer` in the main thread,
`checkpoint.commit` in a `checkpoint.writer`, buffers made ready before the first save, which is counted. `save_state`
neither flushes what it writes to the disk nor hashes it; it has a round that warms it up. On a GPU the copy goes
through the bus, which is not measured here: the share printed for one is computed, from 20 GB/s.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator

from benchmarks.proteins import batches, packed
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from benchmarks.training import Case, Side, ours, train
from data.order.plan import Cursor
from zymogen.trainer.checkpoint.commit import SavePlan, commit
from zymogen.trainer.checkpoint.load import unreadable, verify
from zymogen.trainer.checkpoint.manifest import CheckpointManifest, TrainerState
from zymogen.trainer.checkpoint.restore import restore
from zymogen.trainer.checkpoint.writer import BackgroundWrite, StagingBuffer
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.engine.ranks import Ranks

CPU = torch.device("cpu")
BARS = {"8m": 0.03, "35m": 0.1}
"""Most seconds that a step waits, from the first save on."""
BESIDE = 1.1
_MOST_STEPS = 30
_BUS_BYTES_PER_S = 20e9
_FINGERPRINTS = dict.fromkeys(("identity", "schedule", "corpus", "split"), "-")


class Measured(NamedTuple):
    """One model; seconds, medians over rounds."""

    first_stall: float
    stall: float
    save: float
    beside: float
    """The median step of those that a save was written beside, over the median step alone."""
    steps: float
    """How many steps a save was written beside."""
    verify: float
    load: float
    num_bytes: int
    their_stall: float
    their_load: float
    their_bytes: int


def measure(preset: str, rounds: int, folder: Path) -> Measured:
    """Take turns."""
    side = ours(Case(preset=preset, precision="fp32", crop=512, batch_sequences=8), CPU)
    bins = packed(batches(8, 512, 0, grouped=False)[0], 2048)[:1]
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(side.model, side.optimizer)
    trained = Side(model, optimizer, side.mean_loss)
    train(trained, bins, "fp32", CPU)
    state, staging = TorchState(model, optimizer), StagingBuffer()
    staging.make_ready(state.pieces())
    stalls, saves, alone, beside, counts, theirs = [], [], [], [], [], []
    for number in range(1, rounds + 1):
        alone.append(_seconds(lambda: train(trained, bins, "fp32", CPU)))
        began = time.perf_counter()
        plan, staged = _plan(folder / "ours", number), staging.stage(state)
        write: BackgroundWrite[CheckpointManifest | None] = BackgroundWrite(
            lambda _, plan=plan, staged=staged: commit(plan, staged), staged.num_bytes
        )
        stalls.append(time.perf_counter() - began)
        steps = []
        while not write.has_ended and len(steps) < _MOST_STEPS:
            steps.append(_seconds(lambda: train(trained, bins, "fp32", CPU)))
        beside += steps
        counts.append(len(steps))
        while not write.wait(60.0):
            pass
        if write.error:
            raise write.error
        saves.append(write.seconds)
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        theirs.append(_seconds(lambda: accelerator.save_state(str(folder / "theirs"), safe_serialization=True)))
        if number < rounds:
            shutil.rmtree(plan.published)
    newest = _plan(folder / "ours", rounds).published
    verified = [_seconds(lambda: verify(newest)) for _ in range(3)]
    loaded = [_seconds(lambda: restore(verify(newest, unreadable), state, Ranks(accelerator))) for _ in range(3)]
    theirs_loaded = [_seconds(lambda: accelerator.load_state(str(folder / "theirs"))) for _ in range(3)]
    return Measured(
        stalls[0],
        median(stalls),
        median(saves),
        median(beside) / median(alone),
        median(counts),
        median(verified),
        median(loaded),
        _size(newest),
        median(theirs[1:]),
        median(theirs_loaded),
        _size(folder / "theirs"),
    )


def _plan(folder: Path, step: int) -> SavePlan:
    return SavePlan(
        checkpoints_dir=folder,
        trainer=TrainerState(step=step, tokens_seen=step, cursor=Cursor(), chain="00", skipped_steps=0),
        attempt=1,
        parent=None,
        fingerprints=_FINGERPRINTS,
        world_size=1,
        engine="single",
        precision="no",
        versions={},
    )


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of the small model: that it runs")
    options = parse_options(parser, arguments)
    quick = options.quick
    rows = []
    for preset, bar in list(BARS.items())[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(preset, 3 if quick else 20, Path(folder))
        print(
            f"{preset}: stall {found.stall:.4f} s (first {found.first_stall:.4f}), published after {found.save:.3f} s "
            f"beside {found.steps:.0f} steps, verified in {found.verify:.3f} s, verified and loaded in "
            f"{found.load:.3f} s, {found.num_bytes / 1e6:.1f} MB; save_state: stall {found.their_stall:.4f} s, "
            f"loaded in {found.their_load:.3f} s, {found.their_bytes / 1e6:.1f} MB"
        )
        shares = {"60 s": 60.0, "600 s": 600.0}
        print(f"{preset}: share of the time: " + ", ".join(f"{s}: {found.stall / t:.1e}" for s, t in shares.items()))
        on_a_gpu = found.num_bytes / _BUS_BYTES_PER_S
        print(f"{preset}: on a GPU, computed from 20 GB/s: stall {on_a_gpu:.4f} s, {on_a_gpu / 60:.1e} of 60 s")
        rows += [
            Row(f"{preset}: stall, seconds", "the bar", found.stall, bar, "lower"),
            Row(f"{preset}: first stall, seconds", "the bar", found.first_stall, bar, "lower"),
            Row(f"{preset}: a step beside a save", "a step alone", found.beside, BESIDE, "lower"),
            Row(f"{preset}: stall", "save_state", found.stall / found.their_stall, 1.0, "lower"),
        ]
    report("checkpoint", rows, record=options.record)


if __name__ == "__main__":
    main()
