"""Run directories that no run has written: of any length, with any ends of attempts, any damage, measured or not."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pretrain.evaluate.results import (
    CHANCE,
    CONTROL,
    ConfidenceInterval,
    ContactPairs,
    ContactScores,
    EvaluationResult,
    EvaluationRow,
)
from pretrain.report.results import ASSAYS, CONTACTS, EVALUATION
from zymogen.settings import json_file
from zymogen.trainer.checkpoint.load import newest_step
from zymogen.trainer.run import records
from zymogen.trainer.run.attempts import Attempt, AttemptRecords, attempts
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.run_json import FORMAT

MASK = {"name": "bert", "options": {}, "select_prob": 0.15, "mask_prob": 0.8, "random_prob": 0.1}
BEGAN = datetime(2026, 11, 1, 8, tzinfo=UTC)
TOKENS_A_STEP = 8_000


@dataclass(frozen=True)
class WrittenRun:
    """A run that logs every step, and restarts as often as it is told to."""

    steps: int = 100
    attempts: int = 1
    exit: str | None = "finished"
    """How the last attempt ended; the others were killed."""
    diverges_at: float = math.inf
    """Step from which losses are not finite."""
    validate_every: int = 25
    curriculum: tuple[tuple[int, int], ...] = ()
    sources: tuple[str, ...] = ("mine.fasta.gz",)
    preset: str = "esm2_8m"
    residues: str = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ" * 3
    floor: float | None = None
    unigram: float = 17.8
    held_out: str | None = "equal sequences"
    """As in run.json; None for one of an early version."""

    def write(self, root: Path) -> Path:
        """Write the run directory, and return it."""
        root.mkdir(parents=True)
        (root / "run.json").write_text(json.dumps({"format": FORMAT, **self.described}))
        metrics, attempts = [], []
        for number in range(1, self.attempts + 1):
            base = max(0, self.steps * (number - 1) // self.attempts - 2)  # the last two steps were not saved
            start = {"base_step": base, "cause": "fresh", "world_size": 2}
            attempts.append({"attempt": number, "time": self.at(number, base), **start})
            for step in range(base + 1, self.steps * number // self.attempts + 1):
                metrics += self.lines(number, step)
        if self.exit:
            attempts.append({"attempt": self.attempts, "time": self.at(self.attempts, self.steps), "exit": self.exit})
        if metrics:
            write_lines(root / "metrics.jsonl", metrics)
        write_lines(root / "attempts.jsonl", attempts)
        probabilities = [None if letter == "X" else 0.5 for letter in self.residues]
        protein = {"corpus": 0, "record": 7, "whole": len(self.residues), "first": 0}
        protein |= {"residues": self.residues, "probabilities": probabilities}
        protein |= {"name": "P00044", "by_frequencies": 0.0616}
        predictions = {"format": "zymogen.predictions/2", "proteins": [protein]}
        (root / "predictions.json").write_text(json.dumps(predictions))
        return root

    @property
    def described(self) -> dict[str, Any]:
        """What run.json says, besides its format."""
        return {
            "recipe": {
                "run": {"directory": "runs/mine", "seed": 0, "trackers": []},
                "model": {"preset": self.preset, "init": None},
                "data": {
                    "sources": list(self.sources),
                    "curriculum": list(self.curriculum),
                    "crop_tokens": 512,
                    "mask": MASK,
                },
                "schedule": {"peak_lr": 1e-3, "total_tokens": self.steps * TOKENS_A_STEP},
            },
            "versions": {"torch": "2.13.0"},
            "corpus": {"training_records": 5605} | ({"held_out": self.held_out} if self.held_out else {}),
            "model": {"layers": 6, "dim": 320},
            "compute": ["compute: ddp, 2 processes, cpu, bfloat16, attention flash_cpu, not compiled"],
        }

    def at(self, attempt: int, step: int) -> str:
        """When a step was taken: two seconds each, and a minute between attempts."""
        return (BEGAN + timedelta(seconds=2 * step, minutes=attempt)).isoformat(timespec="milliseconds")

    def lines(self, attempt: int, step: int) -> list[dict[str, Any]]:
        """What a step logs."""
        where = {"step": step, "tokens": step * TOKENS_A_STEP, "attempt": attempt, "time": self.at(attempt, step)}
        loss = 2 + math.exp(-4 * step / self.steps) + 0.05 * math.sin(step * 2.4)
        diverged = step >= self.diverges_at
        values: dict[str, float | None] = {
            "loss": None if diverged else loss,
            "learning_rate": 1e-3 * (1 - step / (self.steps + 1)),
            "grad_norm": None if diverged else 1 + 0.3 * math.cos(step * 1.7),
            "tokens_per_s": 15_000 + 900 * math.sin(step),
            "loader_wait": 0.01,
            "mfu": 0.31,
            "padding": 0.02 + 0.01 * math.sin(step * 3.1),
            "document_tokens": 240.0,
            "imbalance": 1.05,
        }
        written = [where | values]
        if self.validate_every and (step % self.validate_every == 0 or step == self.steps):
            written += [where | {"checkpoint_s": 0.2}, where | {"validation": self.scores(loss, diverged)}]
        return written

    def scores(self, loss: float, diverged: bool) -> dict[str, Mapping[str, float | None]]:
        """Scores of a validation."""
        perplexity = None if diverged else math.exp(loss)
        of = {"perplexity": perplexity, "low": perplexity, "high": perplexity, "unigram": self.unigram}
        gain = None if diverged else math.log(self.unigram) - loss
        of |= {"gain": gain, "gain_low": gain and gain - 0.05, "gain_high": gain and gain + 0.05}
        of |= {"sequences": 40.0, "targets": 900.0} | ({"floor": self.floor} if self.floor else {})
        return {"mask_all": of, "80_10_10": of | {"perplexity": None if diverged else 0.9 * math.exp(loss)}}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write lines as a run does."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


# What was measured after the end of a run -----------------------------------------------------------

LENGTHS = ("below 100 residues", "100 to 199 residues", "200 to 399 residues", "800 residues and more")
IDENTITIES = ("no relative found", "below 30 %", "90 % and more")
WEIGHTS = "ab" * 32
"""Content hash of the weights that all of it was measured of."""


def evaluation() -> EvaluationResult:
    """What `pretrain.evaluate` found."""
    rows = []
    for corruption, worse in (("mask_all", 0.0), ("80_10_10", -2.0)):
        for by, names in (("all", ("all",)), ("length", LENGTHS), ("identity", IDENTITIES)):
            for number, bucket in enumerate(names):
                value = 14.5 + worse + number / 4
                low, high = (math.nan, math.nan) if number == 2 else (value - 0.3, value + 0.4)
                row = EvaluationRow(
                    set="0123456789abcdef",
                    corruption=corruption,
                    by=by,
                    bucket=bucket,
                    sequences=9,
                    groups=5,
                    targets=90,
                    nats=240.0,
                    perplexity=value,
                    low=low,
                    high=high,
                    unigram=17.8,
                    floor=None,
                    gain=0.1,
                    gain_low=math.nan,
                    gain_high=math.nan,
                )
                rows.append(row)
        rows.append(replace(rows[-1], by="length", bucket="of nobody", sequences=0))
    return EvaluationResult(
        model="own",
        origin="runs/own, step 9",
        weights=WEIGHTS,
        data=("runs/own",),
        held_out=None,
        set="0123456789abcdef",
        sequences=9,
        residues=900,
        crop_tokens=512,
        groups="clusters",
        unigram_of="the scored proteins",
        training=("runs/own",),
        searched_by="MMseqs2 18",
        not_measured=(),
        rows=tuple(rows),
    )


def contacts(name: str) -> ContactScores:
    """What `pretrain.contacts` found of a model of this name."""
    means = {
        who: {what: ConfidenceInterval(mean, mean - 0.02, mean + 0.02) for what in ("P@L", "P@L/2", "P@L/5")}
        for who, mean in ((name, 0.31), (CONTROL, 0.05))
    }
    return ContactScores(
        model=name,
        weights=WEIGHTS,
        fitted_on=("b",) * 20,
        left_out_relatives=3,
        undefined=2,
        searched_by="MMseqs2 18",
        chains=("a",) * 1440,
        clusters=tuple(range(1440)),
        values={},
        means=means | {CHANCE: {CHANCE: ConfidenceInterval(0.021, math.nan, math.nan)}},
        weight=(0.5, 0.0),
        bias=-3.0,
        map=ContactPairs("1abc_A", 60, ((0, 30), (4, 40), (10, 20)), ((4, 40), (2, 9), (10, 20), (7, 33))),
    )


HEAD = "DMS_id,UniProt_ID,selection_type,column,variants,spearman,auc,mcc,ndcg,recall,weights"
SPEARMAN = (("A", "Activity", 0.1), ("A", "Activity", 0.3), ("B", "Activity", 0.65), ("B", "Stability", 0.875))
"""Protein, type of selection and figure of each assay of the column "own:wt-marginal"."""


def assays() -> str:
    """The table of the assays; those of another model, too."""
    rows = [
        f"{protein}_{number},{protein},{kind},{column},9,{value},,,,,{weights}"
        for column, weights, factor in (("own:wt-marginal", WEIGHTS, 1), ("other:wt-marginal", "cd" * 32, -1))
        for number, (protein, kind, value) in enumerate((p, k, factor * v) for p, k, v in SPEARMAN)
    ]
    return "\n".join([HEAD, *rows]) + "\n"


def measure(root: Path) -> Path:
    """Put all of it into a run directory, and return that."""
    (root / EVALUATION).write_text(json_file.as_json(evaluation()))
    (root / CONTACTS).write_text(json_file.as_json(contacts("own")))
    (root / ASSAYS).write_text(assays())
    return root


class WrittenStarts:
    """A run directory with starts as a run writes them down."""

    def __init__(self, root: Path) -> None:
        self.run = RunDirectory(root)
        self.number = 0

    def start(self, base_step: int = 0, exit_class: str | None = "error", **more: object) -> None:
        """One start; with no class it was killed. `more` stands in the line of its beginning."""
        self.number += 1
        begun = {"attempt": self.number, "time": records.now(), "world_size": 2, "base_step": base_step, **more}
        records.append(self.run.attempts, begun)
        if exit_class is not None:
            self.run.end_attempt(self.number, exit_class)

    def error(self, rank: int = 0, step: int = 7, *, at: str = "12:00", **changed: object) -> None:
        """An error of a rank in the last start."""
        line: dict[str, Any] = {
            **{"time": at, "attempt": self.number, "rank": rank, "class": "error", "step": step, "phase": "train"},
            **{"error": "RuntimeError", "message": f"no kernel at 0x{self.number:x}", "traceback": ""},
            "place": "zymogen/trainer/step.py:1",
        }
        records.append(self.run.rank_file(rank), line | changed)

    def failed(self, times: int, step: int = 7, exit_class: str = "error", **changed: object) -> None:
        for _ in range(times):
            self.start(exit_class=exit_class)
            self.error(step=step, **{"class": exit_class} | changed)

    @property
    def known(self) -> tuple[RunDirectory, list[Attempt], int]:
        """What the breaker is asked with."""
        return self.run, attempts(AttemptRecords.read(self.run)), newest_step(self.run.checkpoints)

    def saved(self, step: int) -> None:
        (self.run.checkpoints / f"step-{step:09d}").mkdir(parents=True)
