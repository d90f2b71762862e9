"""What a model keeps for its backward pass, and one step on a protein of any length.

    python -m benchmarks.memory                      # bytes a token, by checkpointing
    python -m benchmarks.memory --residues 34350     # and one step on a single protein of titin's length

Bytes are what autograd saves, counted by `saved_tensors_hooks`: each storage once, parameters left out, the difference
between two sizes of batch. They depend on neither the allocator nor the machine. The step's peak is the process's
resident memory, everything included.
"""

import argparse
import time

import numpy as np
import torch

from benchmarks.proteins import draw
from benchmarks.report import Row, report
from benchmarks.resident_memory import peak_resident_mib
from benchmarks.results.record import parse_options
from benchmarks.training import DTYPES, Precision, bytes_per_token, initial, packed_whole, side, train
from pretrain.model.compute import configure
from pretrain.model.encoder import Checkpointing
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ComputeSettings

MODES: tuple[Checkpointing, ...] = ("none", "selective", "layer")
CPU = torch.device("cpu")
MEMORY_GIB = 24


def model_of(preset: str, checkpointing: Checkpointing, dtype: torch.dtype) -> MaskedLanguageModel:
    """The preset with the weights of seed 0, set up for the CPU."""
    model = initial(preset)
    configure(model.encoder, ComputeSettings(checkpointing=checkpointing), CPU, dtype)
    return model


def table(preset: str, precision: Precision) -> None:
    """Print one line: the bytes that each kind of checkpointing keeps."""
    shape, dtype = PRESETS[preset], DTYPES[precision]
    sides = (side(model_of(preset, mode, dtype)) for mode in MODES)
    each = [bytes_per_token(mine, packed_whole, precision, CPU) / (shape.dim * shape.layers) for mine in sides]
    print(f"| {preset} | {str(dtype)[6:]} | {' | '.join(f'{one:.1f}' for one in each)} |", flush=True)


def one_protein(residues: int, checkpointing: Checkpointing) -> Row:
    """One optimizer step of ESM-2 8M in float32 on a single protein, and the memory that the process took at most."""
    mine = side(model_of("esm2_8m", checkpointing, torch.float32))
    batch = packed_whole(draw(np.array([residues + 2])), CPU)
    started, cpu_started = time.perf_counter(), time.process_time()
    loss = train(mine, [batch], "fp32", CPU)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    gib = peak_resident_mib() / 1024
    print(
        f"one protein of {residues:,} residues, checkpointing {checkpointing}: loss {float(loss):.4f}, "
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
    asked = parse_options(parser)
    # This comes first, because the peak of a process is that of everything it has done.
    rows = [one_protein(asked.residues, asked.checkpointing)] if asked.residues else []
    print("| bytes a token, channel and layer | autocast | none | selective | layer |\n|---|---|---|---|---|")
    for preset in asked.presets:
        for precision in DTYPES:
            table(preset, precision)
    report("memory", rows, record=asked.record)


if __name__ == "__main__":
    main()
