"""What a choice of engine costs: bytes and seconds that ranks exchange in one training step.

    python -m benchmarks.communication                                   # every engine, minutes
    python -m benchmarks.communication --only ddp fsdp2 --preset esm2_60k

Each row is a real launch with a file of `accelerate_configs/`, in float32 unless it says bf16, two micro-batches a rank
and step. Bytes are those of the whole tensor of each collective (`expected`), counted by torch's profiler for every
caller. Seconds "in flight" are those in which a collective has begun and not ended, of the rank with the fewest, which
waits least for the others; it may compute meanwhile. All figures are medians over steps. `ratio` is the bytes over
those that the engine's own rules require; an all-reduce counts twice.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.communication.expected import Case, Work, expected, weighted
from benchmarks.communication.rank import MICRO_BATCHES, STEPS
from benchmarks.launch import launched
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options

CASES = (
    Case("ddp", 2),
    Case("fsdp2", 2),
    Case("hsdp", 4),
    Case("zero1", 2),
    Case("zero2", 2),
    Case("zero3", 2),
    Case("ddp", 2, optimizer="muon"),
    Case("fsdp2", 2, optimizer="muon"),
    Case("hsdp", 4, optimizer="muon"),
    *(Case(engine, processes, precision="bf16") for engine, processes in (("fsdp2", 2), ("hsdp", 4), ("zero3", 2))),
    *(Case(engine, 2, exchange) for engine in ("ddp", "fsdp2", "zero3") for exchange in ("ulysses", "all_gather")),
)
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Traffic(Row):
    """A row, and the figures that it was computed from."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of a rank in a step, by kind."""
    expected: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    """Seconds of a step, without a profiler."""
    seconds_in_flight: float | None = None
    share: float | None = None
    """The share of a profiled step's seconds that was in flight."""


def measured(
    case: Case, preset: str, bin_tokens: int, folder: Path, launch: Callable[..., object] = launched
) -> Traffic:
    """Launch one case, and read what its ranks measured."""
    bins = MICRO_BATCHES * case.processes // case.context
    words = ["benchmarks.communication.rank", str(folder / "results.json"), "recipes/quickstart.toml"]
    words += [f"model.preset={preset}", f"data.bin_tokens={bin_tokens}", f"data.bins_per_step={bins}"]
    words += [f"data.crop_tokens={min(512, bin_tokens)}", "schedule.warmup=0"]
    # Bins are not quite full, so this takes STEPS steps at least.
    words += [f"schedule.total_tokens={STEPS * bins * bin_tokens}", "run.evaluate_every=1000"]
    words += [f"run.directory={folder / case.name}", f"data.store_dir={folder / 'stores'}"]
    words += [f"optimizer.name={case.optimizer}"]
    if case.exchange:
        words += [f"parallel.context={case.context}", f"parallel.exchange={case.exchange}"]
    launch(case.engine, case.processes, *words, precision=case.precision)
    found = json.loads((folder / "results.json").read_text())
    return _traffic(case, found["ranks"], Work(preset, bin_tokens, MICRO_BATCHES, bins, found["device"]))


def _traffic(case: Case, ranks: list[dict[str, Any]], work: Work) -> Traffic:
    steps = list(zip(*(rank["steps"] for rank in ranks), strict=True))
    each = [rank["sizes"] for step in steps for rank in step]
    kinds = sorted({kind for sizes in each for kind in sizes})
    sizes = {kind: int(median(sum(one.get(kind, [])) for one in each)) for kind in kinds}
    calls = {kind: int(median(len(one.get(kind, [])) for one in each)) for kind in kinds}
    needed = expected(case, work)
    fewest = [min(step, key=lambda rank: float(rank["in_flight"])) for step in steps]
    return Traffic(
        f"{case.name}, {case.processes} processes: bytes of a step",
        "what its rules ask for",
        weighted(sizes) / weighted(needed),
        1.05,
        "lower",
        sizes=sizes,
        expected=needed,
        calls=calls,
        seconds=median(max(seconds) for seconds in zip(*(rank["seconds"] for rank in ranks), strict=True)),
        seconds_in_flight=median(rank["in_flight"] for rank in fewest),
        share=median(rank["in_flight"] / rank["seconds"] for rank in fewest),
    )


def _line(case: Case, row: Traffic) -> str:
    kinds = sorted(row.sizes.keys() | row.expected.keys())
    each = [
        f"{kind} {row.calls.get(kind, 0)}: {row.sizes.get(kind, 0) / MEGABYTE:.2f} "
        f"({row.expected.get(kind, 0) / MEGABYTE:.2f})"
        for kind in kinds
    ]
    return (
        f"| {case.name} | {case.processes} | {'; '.join(each)} | {weighted(row.sizes) / MEGABYTE:.1f} "
        f"| {row.ratio:.3f} | {row.seconds_in_flight:.2f} | {row.share:.0%} | {row.seconds:.2f} |"
    )


def main() -> None:
    """Launch the cases, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=names, default=names, help=", ".join(names))
    parser.add_argument("--preset", default="esm2_8m")
    parser.add_argument("--bin-tokens", type=int, default=512, help="slots of a micro-batch")
    asked = parse_options(parser)
    print(
        f"{asked.preset}, {MICRO_BATCHES} micro-batches of {asked.bin_tokens} slots a rank and step; under context "
        "parallelism all ranks share each\n"
        "| engine | ranks | calls: MB of a rank in a step, by kind (expected) | MB, all-reduce twice | over expected "
        "| s in flight | share | s a step |\n|---|---|---|---|---|---|---|---|"
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in [case for case in CASES if case.name in asked.only]:
            if 0 < torch.cuda.device_count() < case.processes:
                rows.append(Row(f"{case.name}, {case.processes} processes", "too few GPUs", None, 1.05, "lower"))
                continue
            row = measured(case, asked.preset, asked.bin_tokens, Path(scratch))
            print(_line(case, row), flush=True)
            rows.append(row)
    report("communication", rows, record=asked.record)


if __name__ == "__main__":
    main()
