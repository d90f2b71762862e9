"""The log of an attempt: lines of metrics.jsonl, and the numbers that experiment trackers get.

In: what a step, a save or a validation gave. Out: a line of the file, and one on the console. Kept: metrics.jsonl,
across restarts.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from data.batches.loader import Step
from zymogen.console.safe_text import log
from zymogen.settings.section import settings_of
from zymogen.trainer.checkpoint.manifest import TrainerState
from zymogen.trainer.checkpoint.saver import CheckpointSaver
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.job import Job, TrainingRecipe, ValidationScores
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.interval_schedule import IntervalSchedule
from zymogen.trainer.run_console import RunConsole, loss_of, perplexities
from zymogen.trainer.step import StepResult
from zymogen.trainer.telemetry.memory import most_bytes


class Timer:
    """The speed of training between two lines of metrics, measured from its creation on."""

    def __init__(self) -> None:
        self._since, self._tokens, self._flops, self._waited = time.perf_counter(), 0, 0.0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside this block as waiting."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def count(self, tokens: int, flops: float) -> None:
        """Count one finished step."""
        self._tokens += tokens
        self._flops += flops

    def read(self) -> dict[str, float]:
        """Return the speed so far, and the share of the time in which steps waited for their batches."""
        elapsed = time.perf_counter() - self._since
        sums = {"tokens_per_s": self._tokens, "loader_wait": self._waited, "flops_per_s": self._flops}
        return {name: value / elapsed for name, value in sums.items()}


class MetricsLog:
    """The metrics of one attempt; rank 0 alone writes.

    A step has a line if one is due; on the console, the first and the last one have one, too.

    Args:
        recipe: says how often a step has a line.
        job: of the run, which has numbers of its own.
        engine: how the run is spread.
        run: where the lines are.
        attempt: number of the attempt.
        peak_flops: of all devices, per second, as it was measured.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        job: Job[ValidationScores],
        engine: Engine,
        run: RunDirectory,
        attempt: int,
        peak_flops: float,
    ) -> None:
        self._slots = recipe.data.bins_per_step * recipe.data.bin_tokens
        self._job, self._engine, self._run, self._attempt, self._peak_flops = job, engine, run, attempt, peak_flops
        self._due, self._is_first = IntervalSchedule("run.log_every", recipe.run.log_every), True
        self.timer = Timer()
        """Times the steps since the line before."""

    def step(
        self,
        state: TrainerState,
        step: Step,
        result: StepResult,
        learning_rate: float,
        saver: CheckpointSaver,
        console: RunConsole,
        *,
        is_last: bool,
    ) -> None:
        """Count a step that was taken, and write and show its line if one is due.

        Args:
            state: after the step.
            step: that was taken.
            result: what it did.
            learning_rate: of the step.
            saver: of which the line tells how many saves failed.
            console: where the line is shown.
            is_last: whether it is the last one.
        """
        self.timer.count(step.num_tokens, self._job.flops(step, result))
        is_due = self._due.due_at_step(state.step) or self._due.due_by_clock(first=self._is_first, last=is_last)
        if is_due or is_last or self._is_first:
            values = self._values(state, step, result, learning_rate, saver)
            self.restart_timer()
            if is_due:
                self.line(state, values)
                self._engine.track({name: value for name, value in values.items() if value is not None}, state.step)
                self._due.reset()
            if self._engine.device.type != "cuda":  # a peak that was measured beside other programs is too low
                values.pop("mfu", None)
            console.report(values, step=state.step, seen=state.tokens_seen)
        self._is_first = False

    def restart_timer(self) -> None:
        """Count the time from now on: something other than a step came between."""
        self.timer = Timer()

    def _values(
        self, state: TrainerState, step: Step, result: StepResult, learning_rate: float, saver: CheckpointSaver
    ) -> dict[str, float | None]:
        """Return the numbers of a step."""
        speed, objectives = self.timer.read(), self._job.objectives
        if flops_per_s := speed["flops_per_s"]:
            self._peak_flops = max(self._peak_flops, flops_per_s)  # one that was measured beside others is too low
            speed["mfu"] = flops_per_s / self._peak_flops
        else:
            del speed["flops_per_s"]  # what a model makes of its tokens was computed before
        values = {
            "loss": loss_of(objectives, result.losses),
            **perplexities(objectives, result.losses),
            "learning_rate": learning_rate,
            "grad_norm": result.grad_norm,
            **speed,
            **self._job.metrics(result),
            "memory_bytes": most_bytes(self._engine.device),
            "padding": 1 - step.num_tokens / self._slots,
            "document_tokens": step.squared_lengths / step.num_tokens,
            "imbalance": step.imbalance,
            "skipped_steps": float(state.skipped_steps),
            "failed_saves": float(saver.failed),
            "skipped_saves": float(saver.skipped),
        }
        if self._engine.precision == "fp16":
            values["loss_scale"] = result.loss_scale
        return values

    def line(self, state: TrainerState, values: Mapping[str, object]) -> None:
        """Write a line of the step at which the run stands; one that the disk cannot store is reported and lost."""
        if not self._engine.is_main:
            return
        where = {"step": state.step, "tokens": state.tokens_seen, "attempt": self._attempt}
        try:
            records.append(self._run.metrics, {**where, "time": records.now(), **values})
        except OSError as error:  # a full disk: only failed saves end the run
            log(f"{self._run.metrics}: the line of step {state.step} is lost: {error}")

    def validation(self, state: TrainerState, scores: ValidationScores) -> None:
        """Write what a validation found, and send it to the trackers."""
        numbers = scores.numbers()
        scored = self._job.scored_set() if self._engine.is_main else ""
        part = self._job.scored_part
        self.line(state, {part: numbers, **({"set": scored} if scored else {})})
        flat = {f"{part}/{name}/{key}": value for name, of in numbers.items() for key, value in of.items()}
        self._engine.track(flat, state.step)


def flat_settings(recipe: TrainingRecipe) -> dict[str, object]:
    """A recipe for trackers: dotted name -> number, truth value or text."""
    return {
        name: value if isinstance(value, (bool, int, float)) else str(value) for name, _, value in settings_of(recipe)
    }
