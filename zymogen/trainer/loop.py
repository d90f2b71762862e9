"""The loop: load, step, save, validate, stop.

In: what an attempt has prepared. Out: a trained model, its checkpoints and metrics. Kept: `TrainerState`, in each.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from data.batches.loader import Loader, Step
from zymogen.processes import signals
from zymogen.processes.signals import Interrupted
from zymogen.trainer.checkpoint.manifest import LOSS_SCALE, TrainerState
from zymogen.trainer.checkpoint.saver import CheckpointSaver
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.flags import NO_FLAGS, StepFlags
from zymogen.trainer.job import Job, TrainingRecipe, ValidationScores
from zymogen.trainer.metrics_log import MetricsLog
from zymogen.trainer.optimizer.schedule import learning_rate
from zymogen.trainer.recovery.loss_monitor import LossMonitor, skips_entry
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.interval_schedule import IntervalSchedule
from zymogen.trainer.run_console import RunConsole, loss_of, tracker_rows
from zymogen.trainer.step import InFlightSteps, StepResult, train_step
from zymogen.trainer.validation import ValidationHistory

S = TypeVar("S", bound=ValidationScores)


@dataclass(kw_only=True)
class Trainer(Generic[S]):
    """What an attempt trains, and where it stands. Every rank has one, and calls its methods at the same time."""

    recipe: TrainingRecipe
    job: Job[S]
    engine: Engine
    run: RunDirectory
    model: nn.Module
    """Prepared by the engine, like the optimizer."""
    optimizer: Any
    loss_weights: Tensor
    """``(objectives,)`` float32 on the device."""
    state: TrainerState
    saver: CheckpointSaver
    history: ValidationHistory[S]
    monitor: LossMonitor
    log: MetricsLog
    opening_lines: list[str]
    """For the console, before the first step."""
    phase: str = "start"
    """For the watchdog and the records of attempts, which know them all (`run.attempts`)."""
    seconds: float = 0.0
    """From the first step to the last one."""
    has_recipe: bool | None = None
    """Whether the run's directory has the recipe; None: not tried yet."""
    console: RunConsole = field(init=False)
    loader: Loader = field(init=False)
    in_flight: InFlightSteps = field(init=False)
    validation_schedule: IntervalSchedule = field(init=False)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train: all tokens are seen, or no score has been better for long enough."""
        return self.history.patience_exhausted or self.state.tokens_seen >= self.recipe.schedule.total_tokens

    def train(self) -> None:
        """Train until the recipe's tokens are seen, or until no score has been better for long enough.

        Raises:
            Interrupted: a signal ended it; the steps that were taken are saved, or `unsaved` says why not.
        """
        self.phase = "train"
        self.model.train()
        self.loader = self.job.loader(self.state.cursor, self.state.step)
        with signals.deferred(), closing(self.loader):
            self._begin()
            with self.console, closing(self.saver):
                try:
                    self.take_steps()
                except Interrupted as stopped:
                    if (stopped.agreed or self.engine.world_size == 1) and not stopped.unsaved:
                        self.record(drain=True)
                        if self.state.step:
                            self.save(final=True)
                    raise

    def take_steps(self) -> None:
        """Take all steps that are left; collective."""
        started = time.perf_counter()
        self.log.restart_timer()
        is_due = self.validation_schedule.due_at_step(self.state.step) or self.is_over
        if is_due and self.history.is_missing(self.state.step):
            self.validate_and_save()  # a signal ended the validation of this step, which was saved without one
        if not self.is_over:
            self.take_step(self.load(warm_up=True))
        while not self.is_over:
            self.take_step(self.load())
        self.seconds = time.perf_counter() - started

    def load(self, *, warm_up: bool = False) -> Step:
        """Wait for the next step; a signal ends that, but not of several ranks, which would wait for one that ends."""
        with self.log.timer.waiting(), signals.immediate(self.engine.world_size == 1), self._in_phase("load"):
            step = next(self.loader)
        if warm_up:
            self.engine.warm_up(self.model, step.batches[0])
        return step

    def take_step(self, step: Step) -> None:
        """Take a step; then stop, save or validate, if that is due; collective."""
        tokens_seen = self.state.tokens_seen + self.in_flight.num_tokens + step.num_tokens
        rate = learning_rate(self.recipe.schedule, tokens_seen)
        result = train_step(
            step,
            self.model,
            self.optimizer,
            self.engine,
            bins_per_step=self.recipe.data.bins_per_step,
            weights=self.loss_weights,
            clip_norm=self.recipe.optimizer.clip_norm,
            learning_rate=rate,
            flags=self.flags(),
        )
        self.in_flight.push(step, result, rate)
        number, is_last = self.state.step + len(self.in_flight), tokens_seen >= self.recipe.schedule.total_tokens
        saves = self.saver.due_at_step(number) or is_last
        validates = self.validation_schedule.due_at_step(number)
        flags = self.record(drain=saves or validates)
        signals.raise_if_flagged(flags.interrupt)
        saves, validates = saves or bool(flags.save), validates or bool(flags.validate)
        if self.history.best and (validates or is_last):
            self.validate_and_save()
            return
        if saves:
            self.save(final=is_last)
        if validates:  # after the save: what ends it costs no step
            self.console.print(f"step {self.state.step} | {self.validate().line()}")

    def flags(self) -> StepFlags:
        """What this rank has for the others: signals, the save that is being written, and on rank 0 what is due."""
        save = signals.save_requested() and not self.saver.is_writing
        flags = self.saver.flags()._replace(interrupt=signals.signal_flag(), save=save)
        if self.engine.is_main:
            save = save or self.saver.due_by_clock()
            flags = flags._replace(save=save, validate=self.validation_schedule.due_by_clock())
        return flags

    def record(self, *, drain: bool) -> StepFlags:
        """Record queued steps, oldest first, and return the sum of their flags; collective.

        Those that may wait stay queued, unless `drain` is set or a step that was recorded asks for something.

        Raises:
            RollbackError, NumericalFaultError: a step went wrong, before any save of it.
        """
        flags = NO_FLAGS
        while queued := self.in_flight.pop(drain=drain or flags.any_set):
            step, result, rate = queued
            self._move_past(step, result)
            with self._in_phase("log"):  # rank 0 writes, and may wait for the disk
                self.write_recipe()
                self.log.step(self.state, step, result, rate, self.saver, self.console, is_last=self.is_over)
            with self._in_phase("checkpoint"):
                self.saver.update(result.flags, self.state.step)
            flags = StepFlags.total((flags, result.flags))
        return flags

    def save(self, *, final: bool, overwrite: bool = False) -> bool:
        """Begin to save the step that was recorded last, and return whether a save was begun; collective.

        A `final` save is waited for, and so is one to `overwrite`: these return whether there is a checkpoint.
        """
        with self._between_steps("checkpoint"):
            entries = self.job.checkpoint_entries(self.state.cursor) | self.monitor.entry | self.history.entry
            entries |= skips_entry(self.recipe.data, self.state.step)
            if scale := self.engine.scaler_state():
                entries[LOSS_SCALE] = scale
            self.state = replace(self.state, entries=entries)
            is_saved = self.saver.save(self.state, wait=overwrite, final=final, overwrite=overwrite)
        if is_saved or overwrite:
            self.saver.schedule.reset()
        return is_saved

    def validate(self) -> S:
        """Score the weights as they are, and log the scores; collective."""
        with self._between_steps("validate"):
            scores = self.history.score(self.model, self.state)
        self.validation_schedule.reset()
        return scores

    def validate_and_save(self) -> None:
        """Validate, then save: the checkpoint of a step says how good it is; collective."""
        scores, step = self.validate(), self.state.step
        before = self.history.count(scores, step)
        self.console.print(f"step {step} | {scores.line()} | {self.history.in_words()}")
        if not self.save(final=self.is_over, overwrite=True):
            self.history.best = before  # a step without a checkpoint cannot be the best one

    def _begin(self) -> None:
        """Make what lasts for the steps of this attempt, and show the header of the run."""
        settings, state = self.recipe.run, self.state
        plan, total_tokens = self.loader.plan if self.engine.is_main else None, self.recipe.schedule.total_tokens
        self.console = RunConsole(plan, total_tokens, settings.console)
        self.saver.log = self.console.print
        facts = (*self.job.facts(), *tracker_rows(settings.trackers, self.run.root))
        self.console.open(
            facts,
            self.run.root,
            self.opening_lines,
            step=state.step,
            seen=state.tokens_seen,
            is_over=self.is_over,
        )
        is_late = {"auto": self.engine.device.type == "cuda", "always": True, "never": False}[settings.read_late]
        self.in_flight = InFlightSteps(depth=int(is_late))
        self.validation_schedule = IntervalSchedule("run.evaluate_every", settings.evaluate_every)

    @contextmanager
    def _in_phase(self, phase: str) -> Iterator[None]:
        """Context of a phase between two steps; an error leaves the phase as it is, for the records of attempts."""
        self.phase = phase
        yield
        self.phase = "train"

    @contextmanager
    def _between_steps(self, phase: str) -> Iterator[None]:
        """Context of a phase that the speed of steps does not include."""
        with self._in_phase(phase):
            yield
        self.log.restart_timer()

    def _move_past(self, step: Step, result: StepResult) -> None:
        """Move the state past a step that was taken, unless it went wrong; collective."""
        before = self.state
        self.state = before.after(step.num_tokens, step.cursor, result.digests, applied=result.applied)
        loss = loss_of(self.job.objectives, result.losses) if self.job.bounds_spikes else None
        if fault := self.monitor.check(before, loss, result.applied, result.loss_scale):
            self.saver.wait(patiently=True)
            where = self.recipe, self.run, self.saver.newest, self.loader.plan
            raise self.monitor.make_error(fault, *where, self.job.sample_names, self.engine.on_main)

    def write_recipe(self) -> None:
        """Write the recipe that later attempts must agree with. If the disk cannot store it, each step tries again."""
        if not self.has_recipe:
            is_first = self.has_recipe is None
            self.has_recipe = self.engine.on_main(lambda: self.run.write_recipe(self.recipe, logs=is_first))
