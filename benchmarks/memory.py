"""What a model keeps for its backward pass, and one step on a protein of any length.

    python -m benchmarks.memory                      # bytes a token, by checkpointing
    python -m benchmarks.memory --residues 34350     # and one step on a single protein of titin's length

Bytes are what autograd saves, counted by `saved_tensors_hooks`: each storage once, parameters left out, the difference
between two sizes of batch. They depend on neither the allocator nor the machine. The step's peak is the process's
resident memory, everything included.
"""

import argparse
import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.proteins import draw, packed
from benchmarks.report import Row, report
from benchmarks.training import activation_bytes, adamw
from data.batches.batch import Batch
from pretrain.model.compute import configure
from pretrain.model.encoder import Checkpointing
from pretrain.model.initial import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ComputeSettings

MODES: tuple[Checkpointing, ...] = ("none", "selective", "layer")
CPU = torch.device("cpu")
LENGTH = 448
"""Tokens of a protein; bytes a token do not depend on it."""
MEMORY_GIB = 24


def model_of(preset: str, checkpointing: Checkpointing, dtype: torch.dtype) -> MaskedLanguageModel:
    """The preset with the weights of seed 0, set up for the CPU."""
    model = MaskedLanguageModel(PRESETS[preset])
    initialise(model, 0)
    configure(model.encoder, ComputeSettings(checkpointing=checkpointing), CPU, dtype)
    return model


def one_bin(num_tokens: list[int]) -> Batch:
    """Random proteins of these lengths, concatenated."""
    (batch,) = packed(draw(np.array(num_tokens)), sum(num_tokens))
    return batch


def bytes_per_token(preset: str, checkpointing: Checkpointing, dtype: torch.dtype) -> float:
    """Saved bytes that one token more adds."""
    model = model_of(preset, checkpointing, dtype)
    kept = []
    for count in (2, 4):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            kept.append(activation_bytes(partial(model, one_bin([LENGTH] * count)), model))
    return (kept[1] - kept[0]) / (2 * LENGTH)


def table(preset: str, dtype: torch.dtype) -> None:
    """Print one line: the bytes that each kind of checkpointing keeps."""
    shape = PRESETS[preset]
    each = [bytes_per_token(preset, mode, dtype) / (shape.dim * shape.layers) for mode in MODES]
    print(f"| {preset} | {str(dtype)[6:]} | {' | '.join(f'{one:.1f}' for one in each)} |", flush=True)


def one_protein(residues: int, checkpointing: Checkpointing) -> Row:
    """One optimizer step of ESM-2 8M in float32 on a single protein, and the memory that the process took at most."""
    model = model_of("esm2_8m", checkpointing, torch.float32)
    optimizer, batch = adamw(model), one_bin([residues + 2])
    started, cpu_started = time.perf_counter(), time.process_time()
    loss = model(batch).sum() / int(batch.counts)
    loss.backward()
    optimizer.step()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    gib = int(kib) / 2**20
    print(
        f"one protein of {residues:,} residues, checkpointing {checkpointing}: loss {float(loss.detach()):.4f}, "
        f"peak resident memory {gib:.2f} GiB, {seconds:.0f} s ({cpu_seconds:.0f} CPU s)"
    )
    work = f"8M fp32, a step on one protein of {residues:,} residues: peak resident memory"
    return Row(work, f"{MEMORY_GIB} GiB", gib / MEMORY_GIB, 1.0, "lower")


def main() -> None:
    """Print the tables and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", default=["esm2_8m", "esm2_35m", "modern_8m"])
    parser.add_argument("--residues", type=int, help="train ESM-2 8M on one protein of so many")
    parser.add_argument("--checkpointing", choices=MODES, default="none", help="for that protein")
    asked = parser.parse_args()
    # This comes first, because the peak of a process is that of everything it has done.
    rows = [one_protein(asked.residues, asked.checkpointing)] if asked.residues else []
    print("| bytes a token, channel and layer | autocast | none | selective | layer |\n|---|---|---|---|---|")
    for preset in asked.presets:
        for dtype in (torch.float32, torch.bfloat16):
            table(preset, dtype)
    report("memory", rows)


if __name__ == "__main__":
    main()
