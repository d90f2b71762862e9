"""How far every engine ends from one process: contract C5 of docs/contracts.md, measured.

    python -m benchmarks.engines                    # 28 launches, some minutes
    python -m benchmarks.engines fsdp2 zero3        # these engines alone

Each run is a real launch of one recipe: no warm-up, lr 1e-3, so that parameters move, and 7 bins a step, so that ranks
have unequal numbers of micro-batches and targets. The yardstick is how far one process ends from itself when only the
grouping of a step's bins into forward passes differs: that is rounding, in the precision of the run.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.launch import launched
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from zymogen.trainer.checkpoint.load import newest_valid, unreadable
from zymogen.trainer.checkpoint.reader import read_tensors

SETTINGS = (
    "model.preset=esm2_60k",
    "data.bin_tokens=512",
    "data.bins_per_step=7",
    "optimizer.name=adamw",  # ZeRO has no other
    "optimizer.eps=1e-6",
    "schedule.peak_lr=1e-3",
    "schedule.warmup=0",
    "run.validation_sequences=50",
    "run.log_every=1",
)
TOKENS = 60_000
"""About 18 steps."""
UNTIED = ("model.preset=modern_60k",)
CONTEXT = ("parallel.context=2",)
Case = tuple[str, int, tuple[str, ...], str]
"""Engine, processes, overrides of the recipe, precision as the launcher names it."""
CASES: list[Case] = [
    *((engine, 2, (), "no") for engine in ("ddp", "fsdp2", "zero1", "zero2", "zero3")),
    ("hsdp", 4, (), "no"),
    ("ddp", 3, (), "no"),
    *((engine, 2, CONTEXT, "no") for engine in ("ddp", "fsdp2", "zero1", "zero2", "zero3")),
    ("fsdp2", 2, (*CONTEXT, "parallel.exchange=all_gather"), "no"),
    ("hsdp", 4, CONTEXT, "no"),
    *((engine, 4, CONTEXT, "no") for engine in ("ddp", "fsdp2", "zero3")),
    *((engine, 2, (*UNTIED, *CONTEXT), "no") for engine in ("fsdp2", "zero3")),
    ("fsdp2", 2, (*UNTIED, "optimizer.name=muon"), "no"),
    *((engine, 2, (), "bf16") for engine in ("ddp", "fsdp2", "zero3")),
]


@dataclass(frozen=True)
class Run:
    """The result of a launch."""

    weights: dict[str, torch.Tensor]
    losses: list[float]
    """Loss of every step."""


def trained(folder: Path, case: Case) -> Run:
    """One launch."""
    engine, processes, overrides, precision = case
    run = folder / "-".join([engine, str(processes), *overrides, precision])
    words = ["pretrain", "recipes/quickstart.toml", *SETTINGS, f"schedule.total_tokens={TOKENS}"]
    words += [f"run.directory={run}", f"data.store_dir={folder / 'stores'}", *overrides]
    launched(engine, processes, *words, precision=precision)
    with contextlib.redirect_stderr(sys.stdout):
        checkpoint = newest_valid(run / "checkpoints", writer=False, check=unreadable)
    if checkpoint is None:
        sys.exit(f"{run} has no checkpoint")
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return Run(read_tensors(checkpoint, "model"), [line["loss"] for line in lines if "loss" in line])


def distances(a: Run, b: Run) -> tuple[float, float]:
    """Largest difference between two runs of a weight, and of a step's loss."""
    weights = max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)
    return weights, max(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True))


def main() -> None:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.split("\n")[0])
    parser.add_argument("engines", nargs="*", help="names of files in accelerate_configs/; all of the matrix if none")
    options = parse_options(parser)
    chosen = options.engines
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        made: dict[Case, Run] = {}

        def run(*case: Any) -> Run:
            if case not in made:
                made[case] = trained(Path(scratch), case)
            return made[case]

        for engine, processes, overrides, precision in CASES:
            if chosen and engine not in chosen:
                continue
            model = tuple(o for o in overrides if o.startswith(("model.", "optimizer.")))
            one = run("single", 1, model, precision)
            moved, _ = distances(
                one, Run(run("single", 1, (*model, "schedule.total_tokens=1"), precision).weights, one.losses)
            )
            groupings = [run("single", 1, (*model, f"data.bins_per_forward={n}"), precision) for n in (3, 7)]
            of_weights, of_losses = (max(each) for each in zip(*(distances(one, g) for g in groupings), strict=True))
            weights, losses = distances(one, run(engine, processes, overrides, precision))
            lower = [] if precision == "no" else [precision]
            name = ", ".join([engine, f"{processes} processes", *overrides, *lower])
            print(
                f"{name}: moved {moved:.1e}; differs by {weights:.1e} (regrouping {of_weights:.1e}), "
                f"losses by {losses:.1e} ({of_losses:.1e})",
                flush=True,
            )
            against = "one process, bins regrouped"
            rows.append(Row(f"{name}: weights", against, weights / of_weights, 3.0, "lower"))
            rows.append(Row(f"{name}: losses", against, losses / of_losses, 3.0, "lower"))
    report("engines", rows, record=options.record)


if __name__ == "__main__":
    main()
