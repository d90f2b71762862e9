"""ESM-2's blocks against the modern ones, AdamW against Muon, at equal tokens on proteins of one's own.

    python -m benchmarks.ablation 'proteins/*.gz' --runs runs/ablation

Four arms, each trained from scratch by `python -m pretrain` on the same bins in the same order with the same masks and
schedule. Every arm gets each of its learning rates with the first seed, and the best of them with the other seeds: a
seed changes weights, order and masks. What is compared is the validation loss on whole clusters that were held out,
with every target masked. A run that has finished is not run again, so the same command continues after an interruption.

The spread is over three seeds and one corpus. It says nothing about other sizes, budgets or corpora.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from benchmarks.report import Row, report
from benchmarks.results.record import parse_options

ARMS = {
    "esm2, AdamW": ("esm2", "adamw"),
    "esm2, Muon": ("esm2", "muon"),
    "modern, AdamW": ("modern", "adamw"),
    "modern, Muon": ("modern", "muon"),
}
RATES = {"adamw": (5e-4, 1e-3, 2e-3), "muon": (1e-3, 2e-3, 4e-3, 8e-3)}
SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs share."""

    sources: tuple[str, ...]
    runs: Path
    size: str
    tokens: int

    def command(self, arm: str, rate: float, seed: int) -> list[str]:
        """The command line of one run."""
        preset, optimizer = ARMS[arm]
        return [
            *(sys.executable, "-m", "pretrain", "recipes/quickstart.toml"),
            f"run.directory={self.directory(arm, rate, seed)}",
            f"run.seed={seed}",
            "run.evaluate_every=1000000",
            "run.checkpoint_every=1000000",
            f"model.preset={preset}_{self.size}",
            f"data.sources={json.dumps(list(self.sources))}",
            "data.split_identity=0.3",
            "data.validation_fraction=0.05",
            "data.bins_per_step=2",
            f"optimizer.name={optimizer}",
            f"schedule.peak_lr={rate}",
            f"schedule.total_tokens={self.tokens}",
            "schedule.warmup=0.05",
            "model.start=published",
        ]

    def directory(self, arm: str, rate: float, seed: int) -> Path:
        """The directory of that run."""
        return self.runs / f"{arm.replace(', ', '_').lower()}_{self.size}_{self.tokens}_{rate:g}_{seed}"

    def loss(self, arm: str, rate: float, seed: int) -> float:
        """Validation loss of the run in nats a target, every target masked; trains the run if it does not exist yet."""
        folder = self.directory(arm, rate, seed)
        if not (folder / "export" / "config.json").exists():
            environment = {"OMP_NUM_THREADS": "1", **os.environ}
            subprocess.run(self.command(arm, rate, seed), env=environment, stdout=subprocess.DEVNULL, check=True)
        sources = json.loads((folder / "run.json").read_text())["recipe"]["data"]["sources"]
        if sources != list(self.sources):
            raise ValueError(f"{folder} was trained on {sources}, not {list(self.sources)}; choose another --runs")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        (*_, last) = (line["validation"] for line in lines if "validation" in line)
        found = math.log(last["mask_all"]["perplexity"])
        print(f"{arm}, learning rate {rate:g}, seed {seed}: {found:.4f}", flush=True)
        return found


def main() -> None:
    """Train what is missing, then print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="FASTA files or patterns, as data.sources")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablation"), help="folder of the runs")
    parser.add_argument("--size", default="800k", help="presets esm2_SIZE and modern_SIZE")
    parser.add_argument("--tokens", type=int, default=900_000, help="real tokens of each run")
    asked = parse_options(parser)
    plan = Plan(tuple(asked.sources), asked.runs, asked.size, asked.tokens)
    found: dict[str, tuple[float, list[float]]] = {}
    for arm, (_, optimizer) in ARMS.items():
        by_rate = {rate: plan.loss(arm, rate, SEEDS[0]) for rate in RATES[optimizer]}
        best = min(by_rate, key=lambda rate: by_rate[rate])
        found[arm] = best, [by_rate[best], *(plan.loss(arm, best, seed) for seed in SEEDS[1:])]
    print("\n| arm | best learning rate | validation loss, nats | seeds |\n|---|---|---|---|")
    for arm, (rate, losses) in found.items():
        each = ", ".join(f"{loss:.4f}" for loss in losses)
        print(f"| {arm} | {rate:g} | {mean(losses):.4f} ± {stdev(losses):.4f} | {each} |")
    reference = mean(found["esm2, AdamW"][1])
    rows = [
        Row(f"{arm}: validation loss", "esm2, AdamW", mean(losses) / reference, 1.0, "lower")
        for arm, (_, losses) in found.items()
        if arm != "esm2, AdamW"
    ]
    report("ablation", rows, record=asked.record)


if __name__ == "__main__":
    main()
