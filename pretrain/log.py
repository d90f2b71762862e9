"""The log of an attempt: lines of metrics.jsonl, and the numbers that experiment trackers get.

In: what a step, a save or a validation gave. Out: a line of the file, and one on the screen. Kept:
metrics.jsonl, across restarts.
"""

from collections.abc import Mapping

from data.batches.loader import Step
from pretrain.checkpoint.manifest import TrainerState
from pretrain.checkpoint.saver import CheckpointSaver
from pretrain.engine.engine import Engine
from pretrain.job import Job, TrainingRecipe, ValidationScores
from pretrain.run import records
from pretrain.run.directory import RunDirectory
from pretrain.run.interval_schedule import IntervalSchedule
from pretrain.screen import Console, StepMetrics, report_of
from pretrain.step import Reading
from pretrain.telemetry.memory import most_bytes
from pretrain.telemetry.speed import Throughput, Timer
from zymogen.console.safe_text import log
from zymogen.settings.section import settings_of


class MetricsLog:
    """What one attempt writes down; rank 0 alone writes.

    Args:
        recipe: of the run.
        job: what is trained, which has numbers of its own.
        engine: how the run is spread.
        run: where the lines are.
        attempt: number of the attempt.
    """

    def __init__(
        self, recipe: TrainingRecipe, job: Job[ValidationScores], engine: Engine, run: RunDirectory, attempt: int
    ) -> None:
        self._slots = recipe.data.bins_per_step * recipe.data.bin_tokens
        self._job, self._engine, self._run, self._attempt = job, engine, run, attempt

    def line(self, state: TrainerState, values: Mapping[str, object]) -> None:
        """Write a line of the step at which the run stands; one that the disk cannot store is reported and lost."""
        if not self._engine.is_main:
            return
        where = {"step": state.step, "tokens": state.tokens_seen, "attempt": self._attempt}
        try:
            records.append(self._run.metrics, {**where, "time": records.now(), **values})
        except OSError as error:  # a full disk: only failed saves end the run
            log(f"{self._run.metrics}: the line of step {state.step} is lost: {error}")

    def step(
        self,
        state: TrainerState,
        step: Step,
        outcome: Reading,
        report: StepMetrics,
        speed: Throughput,
        saves: CheckpointSaver,
    ) -> None:
        """Write the numbers of the step that was taken last, and send them to the trackers."""
        values = {
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "grad_norm": outcome.grad_norm,
            "tokens_per_s": speed.tokens_per_s,
            "loader_wait": speed.loader_wait,
            **({} if report.mfu is None else {"flops_per_s": speed.flops_per_s, "mfu": report.mfu}),
            **self._job.metrics(outcome),
            "padding": 1 - step.num_tokens / self._slots,
            "document_tokens": step.squared_lengths / step.num_tokens,
            "imbalance": step.imbalance,
            "skipped_steps": float(state.skipped_steps),
            "failed_saves": float(saves.failed),
            "skipped_saves": float(saves.skipped),
        }
        if self._engine.precision == "fp16":
            values["loss_scale"] = outcome.loss_scale
        self.line(state, values)
        self._engine.track({name: value for name, value in values.items() if value is not None}, state.step)

    def validation(self, state: TrainerState, scores: ValidationScores) -> None:
        """Write what a validation found, and send it to the trackers."""
        numbers = scores.numbers()
        scored = self._job.scored_set() if self._engine.is_main else ""
        part = self._job.scored_part
        self.line(state, {part: numbers, **({"set": scored} if scored else {})})
        flat = {f"{part}/{name}/{key}": value for name, of in numbers.items() for key, value in of.items()}
        self._engine.track(flat, state.step)


class Steps:
    """Which steps have a line: those that are due; and on the screen, the first and the last one, too.

    Args:
        recipe: says how often.
        job: knows the FLOPs of a step.
        engine: how the run is spread.
        log: where lines are written.
        screen: where they are shown.
        peak_flops: of all devices, per second, as it was measured.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        job: Job[ValidationScores],
        engine: Engine,
        log: MetricsLog,
        screen: Console,
        peak_flops: float,
    ) -> None:
        self._job, self._engine, self._log, self._screen, self._peak_flops = job, engine, log, screen, peak_flops
        self._due, self._is_first = IntervalSchedule("run.log_every", recipe.run.log_every), True
        self.clock = Timer()

    def taken(
        self, state: TrainerState, step: Step, outcome: Reading, rate: float, saves: CheckpointSaver, *, is_last: bool
    ) -> None:
        """Count a step that was taken, and tell of it if that is due.

        Args:
            state: after the step.
            step: that was taken.
            outcome: what it did.
            rate: its learning rate.
            saves: those of the attempt, of which the line tells.
            is_last: whether it is the last one.
        """
        self.clock.count(step.num_tokens, self._job.flops(step, outcome))
        self._screen.count(step.num_tokens, lambda: most_bytes(self._engine.device))
        is_due = self._due.due_at_step(state.step) or self._due.due_by_clock(first=self._is_first, last=is_last)
        if is_due or is_last or self._is_first:
            speed, self.clock = self.clock.read(), Timer()
            # A peak that was measured while other programs ran is too low.
            self._peak_flops = max(self._peak_flops, speed.flops_per_s)
            report = report_of(self._job.objectives, outcome.losses, rate, speed, self._peak_flops)
            if is_due:
                self._log.step(state, step, outcome, report, speed, saves)
                self._due.reset()
            self._screen.report(report, shows_mfu=self._engine.device.type == "cuda")
        self._is_first = False

    def paused(self) -> None:
        """Count the time from now on: something other than a step came between."""
        self.clock = Timer()


def flat_settings(recipe: TrainingRecipe) -> dict[str, object]:
    """A recipe for trackers: dotted name -> number, truth value or text."""
    return {
        name: value if isinstance(value, (bool, int, float)) else str(value) for name, _, value in settings_of(recipe)
    }
