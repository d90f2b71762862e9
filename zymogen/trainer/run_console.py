"""The lines that a run prints before its first step, and while it trains.

In: plain numbers and texts. Out: lines of text, of at most 80 columns where their values allow. Kept: how long the
latest steps, saves and validations took, from which the time left is computed. Torch is not imported.
"""

import math
import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

from data.order.plan import Plan
from data.order.plan_size import PlanSize, plan_size
from zymogen.console.format import UNBROKEN, Row, aligned, count
from zymogen.console.progress import ProgressLine, clock_time
from zymogen.settings.interval import Interval
from zymogen.trainer.run.console_numbers import console_numbers, format_numbers

if TYPE_CHECKING:
    from zymogen.trainer.job import LossTerm

_CHUNK_S = 2.0
"""Steps are put together until they have taken so long: the time of a very short one is mostly noise."""
_CHUNKS = 30
_SLOWEST = 3.0
"""A chunk counts as at most so many times as slow as the median: one that waited for a disk is no forecast."""


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


Pauses = Mapping[str, tuple[Interval, float]]
"""What recurs between two steps and is done at the end, too, a save and a validation: how often, and about how many
tokens are trained on in the time of one, which is the forecast until one was timed."""


class TimeLeft:
    """The time that a run still takes: its steps at their latest speed, and the saves and validations to come.

    The first step of a start is not counted, as it sets much up.

    Args:
        step: steps that were taken before this start.
        pauses: what comes between steps.
        clock: gives seconds.
    """

    def __init__(
        self, step: int = 0, pauses: Pauses = MappingProxyType({}), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock, self._planned = clock, pauses
        self._since: float | None = None
        self._chunks: deque[list[float]] = deque(maxlen=_CHUNKS)
        """Seconds and tokens of each; the last one is being filled."""
        self._paused: dict[str, list[float]] = {}
        """Seconds of each pause, by its kind."""
        self._step = step

    def count(self, tokens: int) -> None:
        """Count a step that has just ended."""
        now = self._clock()
        self._step += 1
        if self._since is not None:
            took = now - self._since
            if not self._chunks or self._chunks[-1][0] >= _CHUNK_S:
                self._chunks.append([0.0, 0])
            self._chunks[-1][0] += took
            self._chunks[-1][1] += tokens
        self._since = now

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """Count the time inside this block as a pause between two steps, such as a save."""
        began = self._clock()
        yield
        now = self._clock()
        self._paused.setdefault(kind, []).append(now - began)
        if self._since is not None:
            self._since += now - began

    def seconds(self, tokens: int, steps: int) -> float | None:
        """The seconds that `tokens` and `steps` still take; None while no step was timed."""
        per_token = self._seconds_per_token()
        if per_token is None:
            return None
        training = tokens * per_token
        pauses = 0.0
        for kind, (every, of_one) in self._planned.items():
            each = self._paused.get(kind) or [of_one * per_token]
            pauses += every.times(self._step, self._step + steps, training) * sum(each) / len(each)
        return training + pauses

    def _seconds_per_token(self) -> float | None:
        if not self._chunks:
            return None
        usual = median(seconds / tokens for seconds, tokens in self._chunks)
        seconds = sum(min(seconds, _SLOWEST * usual * tokens) for seconds, tokens in self._chunks)
        return seconds / sum(tokens for _, tokens in self._chunks)


class RunConsole(ProgressLine):
    """The lines of one attempt, on standard error.

    Args:
        plan: of the attempt's steps; None on a rank that shows nothing.
        total_tokens: the token at which training ends.
        seen: tokens that were trained on before this start.
        step: steps that were taken before this start.
        pauses: what comes between steps.
        numbers: the names of `run.console`.
    """

    def __init__(
        self, plan: Plan | None, total_tokens: int, seen: int, step: int, pauses: Pauses, numbers: Sequence[str]
    ) -> None:
        super().__init__(total_tokens, speaks=plan is not None)
        self._numbers = console_numbers(numbers) if plan else {}
        self._extent = plan_size(plan) if plan else None
        self._total_tokens, self._seen, self._step = total_tokens, seen, step
        self._left = TimeLeft(step, pauses)
        self.pause = self._left.pause

    def open(self, facts: Sequence[Row], directory: Path, more: Sequence[str], *, is_over: bool) -> None:
        """Say what is trained, and `more` lines after it; `is_over` where an earlier start has finished it."""
        if self._extent is None:
            return
        step, seen = self._step, self._seen
        block = format_header(
            facts, self._extent, total_tokens=self._total_tokens, seen=seen, step=step, directory=directory
        )
        for line in (*block, *more):
            self.print(line)
        if step:
            ended = f"{directory} has finished at step {step}: nothing is left to train"
            self.print(ended if is_over else f"continuing {directory} at step {step}")

    def count(self, tokens: int) -> None:
        """Count a step that has just ended."""
        self._step, self._seen = self._step + 1, self._seen + tokens
        self._left.count(tokens)

    def report(self, line: Mapping[str, float | None]) -> None:
        """Show the progress after the step that was counted last, and the numbers of its line of metrics."""
        if self._extent is None:
            return
        left = self._extent.steps(self._seen, self._total_tokens)
        seconds = self._left.seconds(max(0, self._total_tokens - self._seen), left)
        share = min(1.0, self._seen / self._total_tokens)
        texts = format_numbers(self._numbers, line)
        self.update(self._seen, format_progress(texts, self._step, self._step + left, share, seconds))


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
