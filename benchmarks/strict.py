"""What `run.reduction = "strict"` costs: the speed of steps with and without it, in real launches, in turn.

    python -m benchmarks.strict
    python -m benchmarks.strict --quick

In: the embedded corpus. Out: a table and the JSON line of `benchmarks.report`. Kept: nothing.

Two processes with one thread each train bins of 512 slots in float32, four of them each a step. A figure is the median
of the tokens a second of all steps but the first ones, over the launches of one side.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.launch import launched
from benchmarks.report import Row, report

SIDES = ("fast", "strict")
BAR = 1.5
"""Most times as long that a step may take."""
_UNTIMED = 3
_SETTINGS = (
    "data.bin_tokens=512",
    "data.crop_tokens=512",
    "data.bins_per_step=8",
    "optimizer.name=adamw",
    "schedule.warmup=0",
    "run.log_every=1",
    "run.evaluate_every=1_000_000",
    "run.validation_sequences=4",
)


def speeds(folder: Path, preset: str, side: str, steps: int) -> list[float]:
    """Tokens a second of the steps of one launch."""
    words = ["pretrain", "recipes/quickstart.toml", *_SETTINGS, f"model.preset={preset}", f"run.reduction={side}"]
    words += [f"run.directory={folder}", f"data.store_dir={folder.parent / 'stores'}"]
    launched("ddp", 2, *words, f"schedule.total_tokens={steps * 8 * 470}")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["tokens_per_s"] for line in lines if "tokens_per_s" in line and line["step"] > _UNTIMED]


def main(arguments: list[str] | None = None) -> None:
    """Launch and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a model of 60,000 weights, one launch of each")
    quick = parser.parse_args(arguments).quick
    rows, others = [], {}
    for preset in ("esm2_60k",) if quick else ("esm2_8m",):
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(1 if quick else 3):
                for side in SIDES[:: 1 if number % 2 else -1]:
                    found[side] += speeds(Path(folder) / f"{side}-{number}", preset, side, 8 if quick else 15)
        fast, strict = (median(found[side]) for side in SIDES)
        others[preset] = {"fast tokens/s": fast, "strict tokens/s": strict}
        rows.append(Row(f"{preset}, strict, seconds a token", "fast", fast / strict, BAR, "lower"))
    report("strict", rows, others=others)


if __name__ == "__main__":
    main()
