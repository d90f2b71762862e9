"""How far several processes end from one: contract C5, measured.

    python -m benchmarks.engines

Each run is a real launch of one recipe: no warm-up, lr 1e-3, so that parameters move. The yardstick is how far one
process ends from itself when only the grouping of a step's bins into forward passes differs: that is rounding.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.report import Row, report
from pretrain.checkpoint.load import newest_valid
from pretrain.checkpoint.tensors import TensorReader

Weights = dict[str, torch.Tensor]

SETTINGS = (
    "model.preset=esm2_60k",
    "data.bin_tokens=512",
    "data.bins_per_step=7",
    "optimizer.eps=1e-6",
    "schedule.peak_lr=1e-3",
    "schedule.warmup_tokens=0",
    "run.validation_sequences=50",
)
STEPS_TOKENS = 100_000
"""About 30 steps."""


def trained(folder: Path, name: str, processes: int, *overrides: str) -> Weights:
    """Final weights of one launch."""
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/ddp.yaml"]
    words += ["--num_processes", str(processes), "-m", "pretrain", "recipes/quickstart.toml", *SETTINGS]
    words += [f"run.directory={folder / name}", f"data.store_dir={folder / 'stores'}"]
    words += [f"schedule.total_tokens={STEPS_TOKENS}", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    with contextlib.redirect_stderr(sys.stdout):
        checkpoint = newest_valid(folder / name / "checkpoints", writer=False)
    if checkpoint is None:
        sys.exit(f"{folder / name} has no checkpoint")
    reader = TensorReader(checkpoint.path, "model", frozenset(f.path for f in checkpoint.manifest.files))
    return {tensor: reader.read(tensor) for tensor in reader.shapes}


def distance(a: Weights, b: Weights) -> float:
    """Largest absolute difference between two sets of weights."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def main() -> None:
    """Run the matrix and print it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        one = trained(folder, "one", 1)
        moved = distance(one, trained(folder, "start", 1, "schedule.total_tokens=1"))
        regrouped = [trained(folder, f"by{n}", 1, f"data.bins_per_forward={n}") for n in (3, 7)]
        yardstick = max(distance(one, other) for other in regrouped)
        print(f"parameters moved by up to {moved:.1e}; one process regrouped differs by {yardstick:.1e}")
        rows = []
        for processes in (2, 3):
            difference = distance(one, trained(folder, f"ddp{processes}", processes))
            print(f"ddp, {processes} processes: differs from one by {difference:.1e}")
            work = f"ddp, {processes} processes: distance to one process"
            rows.append(Row(work, "one process, bins regrouped", difference / yardstick, 3.0, "lower"))
    report("engines", rows)


if __name__ == "__main__":
    main()
