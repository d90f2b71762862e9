"""The lines that a run prints before its first step, and while it trains.

In: plain numbers and texts. Out: lines of text, of at most 80 columns where their values allow. Kept: when the first
step ended, from which the time left is computed. Torch is not imported.
"""

import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data.order.plan import Plan
from data.order.plan_size import PlanSize, plan_size
from zymogen.console.format import UNBROKEN, Row, aligned, count
from zymogen.console.progress import ProgressLine, clock_time
from zymogen.trainer.run.console_numbers import console_numbers, format_numbers

if TYPE_CHECKING:
    from zymogen.trainer.job import LossTerm


# Before the first step ----------------------------------------------------------------------------


def format_header(
    facts: Sequence[Row], extent: PlanSize, *, total_tokens: int, seen: int, step: int, directory: Path
) -> list[str]:
    """What is trained, on what, for how long and where: the first lines of a run.

    Args:
        facts: what the job knows of its model and data.
        extent: how much a step and a pass hold.
        total_tokens: the token at which training ends.
        seen: tokens that were trained on before this start.
        step: steps that were taken before this start.
        directory: of the run.
    """
    steps = extent.steps(seen, total_tokens)
    length = f"{total_tokens:,} tokens, about {count(step + steps, 'step')}"
    if steps > 1:
        length += f" of {round((total_tokens - seen) / steps):,}"
    one_pass = ""
    if extent.tokens_per_pass:
        one_pass = f"{'' if extent.is_exact else 'about '}{extent.tokens_per_pass:,} tokens"
        length += f", {format_epochs(total_tokens / extent.tokens_per_pass)}"
    done = f"{seen:,} tokens, {step:,} steps" if step else ""
    rows = (("one pass", one_pass), ("training", length), ("done before", done), ("run directory", str(directory)))
    return aligned([*facts, *(row for row in rows if row[1])])


def format_epochs(passes: float) -> str:
    """``0.31 passes``, ``12 passes``, ``540,000 passes``."""
    digits = 2 if passes < 10 else 0
    number = f"{passes:,.{digits}f}" if passes < 1000 else f"{float(f'{passes:.3g}'):,.0f}"
    return f"{number} pass{'' if number == '1.00' else 'es'}"


def tracker_rows(trackers: Sequence[str], directory: Path) -> list[Row]:
    """How to look at the numbers of each experiment tracker that was started, by its name in run.trackers."""
    is_offline = os.environ.get("WANDB_MODE") == "offline"
    folder = shlex.quote(str(directory))
    trackio = shlex.quote(os.environ.get("TRACKIO_DIR", str(directory / "trackio")))
    wandb = f"wandb sync {folder}/wandb/offline-run-*" if is_offline else "at the address that wandb prints"
    look = {
        "tensorboard": f"tensorboard --logdir {folder}",
        "trackio": f"TRACKIO_DIR={trackio} trackio show --project zymogen",
        "wandb": wandb,
    }
    return [(name, look[name].replace(" ", UNBROKEN)) for name in trackers]  # commands, to be pasted whole


def gigabytes(num_bytes: float) -> str:
    """``7 MB``, ``0.85 GB``, ``12 GB``: in units of 10^6 or 10^9 bytes."""
    if num_bytes < 1e8:
        return f"{num_bytes / 1e6:.0f} MB"
    number = num_bytes / 1e9
    return f"{number:.2f} GB" if number < 10 else f"{number:.0f} GB"


# While it trains ----------------------------------------------------------------------------------


def perplexities(terms: Sequence["LossTerm"], losses: Sequence[float | None]) -> dict[str, float]:
    """Return the perplexity of each loss term that has one, for a line of metrics.

    Args:
        terms: of the job.
        losses: the mean loss of each; None without a target in the step.
    """
    return {
        "perplexity" if len(terms) == 1 else f"perplexity/{term.name}": math.inf if loss > 700 else math.exp(loss)
        for term, loss in zip(terms, losses, strict=True)
        if term.has_perplexity and loss is not None
    }


def loss_of(terms: Sequence["LossTerm"], losses: Sequence[float | None]) -> float | None:
    """Return the loss of a step, the weighted sum of its terms; None without any target."""
    weighted = [term.weight * loss for term, loss in zip(terms, losses, strict=True) if loss is not None]
    return sum(weighted) if weighted else None


class RunConsole(ProgressLine):
    """The lines of one attempt, on standard error.

    Args:
        plan: of the attempt's steps; None on a rank that shows nothing.
        total_tokens: the token at which training ends.
        numbers: the names of `run.console`.
    """

    def __init__(self, plan: Plan | None, total_tokens: int, numbers: Sequence[str]) -> None:
        super().__init__(total_tokens, speaks=plan is not None)
        self._numbers = console_numbers(numbers) if plan else {}
        self._extent = plan_size(plan) if plan else None
        self._total_tokens = total_tokens
        self._began: tuple[float, int] | None = None  # time and tokens at the end of the first step, which sets much up

    def open(
        self, facts: Sequence[Row], directory: Path, more: Sequence[str], *, step: int, seen: int, is_over: bool
    ) -> None:
        """Print what is trained, and `more` lines after it.

        Args:
            facts: what the job knows of its model and data.
            directory: of the run.
            more: further lines.
            step: steps that were taken before this start.
            seen: tokens that were trained on before this start.
            is_over: whether an earlier start has finished the run.
        """
        if self._extent is None:
            return
        block = format_header(
            facts, self._extent, total_tokens=self._total_tokens, seen=seen, step=step, directory=directory
        )
        for line in (*block, *more):
            self.print(line)
        if step:
            ended = f"{directory} has finished at step {step}: nothing is left to train"
            self.print(ended if is_over else f"continuing {directory} at step {step}")

    def report(self, line: Mapping[str, float | None], *, step: int, seen: int) -> None:
        """Show the progress after a step, and the numbers of its line of metrics; the first step has one.

        The time left is that of the mean speed since then, saves and validations included.
        """
        if self._extent is None:
            return
        now, left_s = time.perf_counter(), None
        if self._began is None:
            self._began = now, seen
        elif seen > self._began[1]:
            left_s = (now - self._began[0]) / (seen - self._began[1]) * max(0, self._total_tokens - seen)
        left = self._extent.steps(seen, self._total_tokens)
        texts, share = format_numbers(self._numbers, line), min(1.0, seen / self._total_tokens)
        self.update(seen, format_progress(texts, step, step + left, share, left_s))


def format_progress(numbers: Sequence[str], step: int, steps: int, share: float, left_s: float | None) -> str:
    """Return the line of a step.

    Args:
        numbers: texts of the step's numbers.
        step: number of the step, from 1.
        steps: about how many there will be.
        share: of the tokens that are seen, in [0, 1].
        left_s: seconds until the run ends; None if that is not known yet.
    """
    if share >= 1:
        return " | ".join((f"step {step:,} of {max(step, steps):,}", *numbers, "100 %"))
    left = [f"{clock_time(left_s)} left"] if left_s is not None else []
    percent = f"{math.floor(1000 * share) / 10:.1f} %"
    return " | ".join((f"step {step:,} of about {max(step, steps):,}", *numbers, percent, *left))
