"""The loop: from the last checkpoint, or from nothing, to the last token; then validate and publish.

In: a recipe, what opens its job, an engine. Out: the run directory. Kept: `TrainerState`, in each checkpoint.

It claims the directory, starts an attempt, restores, takes steps, skips some, logs, saves and finishes. What is
trained, on what and with which scores, the `Job` knows.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch

from data.batches.loader import Loader, Step
from data.order.plan import EMPTY_CHAIN, Cursor, Plan, extend_chain
from pretrain.checkpoint.best import BestCheckpoint
from pretrain.checkpoint.canonical import InvalidCheckpointError
from pretrain.checkpoint.compatibility import describe_changes, fingerprints_of, require_same_run
from pretrain.checkpoint.load import VerifiedCheckpoint, open_checkpoint
from pretrain.checkpoint.manifest import BEST, ENTRIES, FROZEN, LOSS_SCALE, TrainerState
from pretrain.checkpoint.restore import fill_frozen, restore
from pretrain.checkpoint.retention import sweep
from pretrain.checkpoint.save_schedule import SaveSchedule
from pretrain.checkpoint.saver import CheckpointSaver
from pretrain.engine.engine import Engine
from pretrain.engine.named_state import fill
from pretrain.job import Job, ModelBundle, TrainingRecipe, ValidationScores, publish, require_publishable
from pretrain.log import MetricsLog, Steps, flat_settings
from pretrain.optimizer.groups import build_optimizer, learning_rate, num_stored
from pretrain.recovery.loss_monitor import LossMonitor, faults_met, require_remedy, require_same_skips, skips_entry
from pretrain.recovery.remote_checkpoints import RemoteCheckpoints
from pretrain.recovery.restart_limit import require_progress
from pretrain.recovery.shared_directory import require_shared
from pretrain.recovery.watchdog import watched
from pretrain.run.attempts import attempts, recorded
from pretrain.run.directory import RunDirectory
from pretrain.run.interval_schedule import IntervalSchedule
from pretrain.run.settings import planned_saves
from pretrain.screen import Console, Pause, loss_of, tracker_rows
from pretrain.step import InFlightSteps, Reading, train_step
from pretrain.telemetry.peak import peak_of_all
from pretrain.validations import ValidationHistory
from zymogen.console.progress import ProgressBar
from zymogen.processes import signals
from zymogen.processes.signals import Interrupted
from zymogen.settings.interval import interval

R = TypeVar("R", bound=TrainingRecipe)
S = TypeVar("S", bound=ValidationScores)


@dataclass(frozen=True, slots=True)
class TrainingResult(Generic[S]):
    """The results of a finished run."""

    scores: S
    state: TrainerState
    run: RunDirectory
    seconds: float
    """Time that this attempt trained: from its first step to its last one, with the saves and validations between."""
    job: Job[S]
    best: BestCheckpoint | None = None
    """The best validation, of a job that selects a checkpoint; `scores` are those of the last weights."""


def train(
    recipe: R,
    open_job: Callable[[R, Engine], Job[S]],
    engine: Engine,
    *,
    allow_schedule_change: bool = False,
    despite_failures: bool = False,
    written: str = "",
) -> TrainingResult[S]:
    """Train to the recipe's last token, from the newest whole checkpoint if there is one; collective.

    `allow_schedule_change` and `despite_failures` are the options of the command. `written` is the text of a recipe
    that was chosen, to be kept in the run directory; empty if there is none.

    Raises:
        Interrupted: a signal ended the run before that.
        RollbackError: it went wrong at a step for the first time; call it again, in new processes if possible.
        NumericalFaultError: it went wrong at the same step in two attempts.
    """
    recipe.schedule.require_tokens()
    run = RunDirectory(Path(recipe.run.directory), written)
    elsewhere = RemoteCheckpoints(run, recipe, allow_schedule_change, engine)

    def begin() -> tuple[int, int, tuple[Path, str] | None, list[int]]:
        with run.claimed(recipe, allow_schedule_change=allow_schedule_change):
            with signals.immediate():
                known, newest_step = elsewhere.attempts()
            before = attempts(known)
            require_remedy(run, known.faults, newest_step, recipe)
            asked_for = require_progress(run, before, newest_step, despite_failures=despite_failures)
            sweep(run.checkpoints)
            with signals.immediate():
                found = elsewhere.newest()
            attempt, found = elsewhere.start_attempt(found, engine.world_size, despite_failures=asked_for)
        chosen = (found.path, found.manifest.self_sha256) if found else None
        return attempt, found.trainer.step if found else 0, chosen, [] if asked_for else faults_met(before)

    training: Trainer[S] | None = None

    def position() -> dict[str, object]:
        step, phase = (training.state.step, training.phase) if training else (base_step, "start")
        return {"step": step, "phase": phase}

    def newest() -> Path | None:
        return training.saves.newest if training else chosen[0] if chosen else None

    with signals.deferred():
        require_shared(run, engine)
        attempt, base_step, chosen, faults = engine.on_main(begin)
        watching = watched(run, engine, attempt, position, recipe.run.grace_s)
        recording = recorded(run, engine.rank, attempt, position, newest)
        with elsewhere.stored_at_the_end(attempt), watching, recording, signals.blame_signal(), signals.immediate():
            job = open_job(recipe, engine)
            if not chosen:  # a start that continues does without the seconds that it takes
                engine.on_main(lambda: require_publishable(job))
            engine.on_main(lambda: run.describe_corpus(job.description()))
            engine.on_main(lambda: engine.start_trackers(flat_settings(recipe), run.root, run.read().id))
            checkpoint = open_checkpoint(*chosen) if chosen else None
            training = Trainer(recipe, job, engine, run, attempt, checkpoint, elsewhere, faults)
            training.run_to_end()
            scores = training.finish()
    summary = TrainingResult(scores, training.state, run, training.seconds, job, training.validations.best)
    training = None  # with its model, so that the engine can train another one
    engine.release()
    return summary


class Trainer(Generic[S]):
    """One attempt: the model, the optimizer, and where they stand. Every rank makes one at the same time.

    Args:
        recipe: of the run.
        job: what is trained.
        engine: how the run is spread.
        run: claimed by rank 0.
        attempt: number of the attempt.
        checkpoint: to continue from; None for a run that begins.
        elsewhere: where an earlier one is, if that one is damaged.
        faults: steps at which earlier attempts have met numerical faults.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        job: Job[S],
        engine: Engine,
        run: RunDirectory,
        attempt: int,
        checkpoint: VerifiedCheckpoint | None,
        elsewhere: RemoteCheckpoints,
        faults: Collection[int],
    ) -> None:
        self.recipe, self.job, self.engine, self.run, self.attempt = recipe, job, engine, run, attempt
        self.phase = "start"
        fingerprints = fingerprints_of(recipe) | job.fingerprints()
        built = job.build(run.model() if checkpoint else None)
        num_parameters = sum(parameter.numel() for parameter in built.model.parameters())
        if not checkpoint:  # run.json describes the model from here on
            engine.on_main(lambda: run.describe(model=dict(built.description), parameters=num_parameters))
        self._prepare(built)
        if frozen := fill_frozen(self.named, built.initializers, engine.gather) or built.frozen:
            fingerprints[FROZEN] = frozen
        self.state = TrainerState(step=0, tokens_seen=0, cursor=Cursor(), chain=EMPTY_CHAIN, skipped_steps=0)
        if checkpoint:
            checkpoint = self._restore(checkpoint, elsewhere, fingerprints)
            self.state = checkpoint.trainer
        else:
            fill(self.named, self.named.names, built.initializers)
        self.opening_lines += describe_changes(checkpoint, engine)
        engine.on_main(lambda: run.describe(compute=self.opening_lines))
        self.log = MetricsLog(recipe, job, engine, run, attempt)
        self.validations = ValidationHistory(job, engine, self.log, run, self.state)
        log, settings = self.log.line, recipe.run
        self.saves = CheckpointSaver(run, engine, self.named, attempt, fingerprints, settings, checkpoint, log)
        if not self.is_over:
            steps = recipe.schedule.total_tokens // (recipe.data.bins_per_step * recipe.data.bin_tokens)
            self.saves.require_free_space(self.num_stored, with_best=job.selection is not None, steps=steps)
        self.numerics, self.seconds = LossMonitor(recipe.run.spike_nats, self.state, faults), 0.0
        self.bound: bool | None = None  # None: not tried yet
        self.late = int({"auto": engine.device.type == "cuda", "always": True, "never": False}[recipe.run.read_late])

    def _prepare(self, built: ModelBundle) -> None:
        """The model and its optimizer as the engine runs them; their values come later."""
        engine, model = self.engine, built.model
        with ProgressBar("setting the model up", after_s=2.0, speaks=engine.is_main):
            self.opening_lines = list(self.job.set_up(model))
        self.peak_flops = peak_of_all(engine, self.run, engine.compute_dtype, built.width)
        self.weights = torch.tensor([objective.weight for objective in self.job.objectives], device=engine.device)
        optimizer = build_optimizer(self.job.parameter_groups(model), self.recipe.optimizer)
        self.num_stored = num_stored(optimizer)
        self.model, self.optimizer = engine.prepare(model, optimizer)
        self.named = engine.named_state(self.model, self.optimizer)

    def _restore(
        self, checkpoint: VerifiedCheckpoint, elsewhere: RemoteCheckpoints, fingerprints: Mapping[str, str]
    ) -> VerifiedCheckpoint:
        """Give what is trained the values of a checkpoint of this run, or of an earlier one if that one is damaged."""
        known = ENTRIES | self.job.entry_names | ({BEST} if self.job.selection else frozenset())
        while True:
            require_same_run(checkpoint, fingerprints)
            require_same_skips(checkpoint, self.recipe.data)
            self.job.require_entries(checkpoint.trainer.entries, checkpoint.trainer.cursor)
            try:
                state = restore(checkpoint, self.named, self.engine, fingerprints.get(FROZEN), known)
            except InvalidCheckpointError as error:  # on every rank
                checkpoint = elsewhere.fall_back(checkpoint, error, self.attempt)
                continue
            self.engine.restore_scaler(state.entries.get(LOSS_SCALE))
            return checkpoint

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train: all tokens are seen, or no score has been better for long enough."""
        return self.validations.patience_exhausted or self.state.tokens_seen >= self.recipe.schedule.total_tokens

    def run_to_end(self) -> None:
        """Train until the recipe's tokens are seen, or until no score has been better for long enough.

        Raises:
            Interrupted: a signal ended it; every step that was taken is saved.
        """
        self.phase = "train"
        self.model.train()
        loader = self.job.loader(self.state.cursor, self.state.step)
        with signals.deferred(), closing(loader), self._screen(loader) as screen, closing(self.saves):
            self.saves.say = screen.say
            lines = Steps(self.recipe, self.job, self.engine, self.log, screen, self.peak_flops)
            ahead = InFlightSteps(self.late, partial(self._taken, lines, loader.plan))
            try:
                self._take_steps(loader, screen, lines, ahead)
            except Interrupted as stopped:
                if (stopped.agreed or self.engine.world_size == 1) and not stopped.unsaved:
                    ahead.read(all_of_them=True)
                    if self.state.step:
                        self.save(is_last=True)
                raise

    def _screen(self, loader: Loader) -> Console:
        """The screen of this attempt, which has said what is trained."""
        settings, state = self.recipe.run, self.state
        pauses = (
            Pause("save", planned_saves(settings.checkpoint_every, settings.may_lose), 0.0),
            Pause("validation", interval("run.evaluate_every", settings.evaluate_every), self.job.validation_tokens()),
        )
        plan = loader.plan if self.engine.is_main else None
        screen = Console(plan, self.recipe.schedule.total_tokens, state.tokens_seen, state.step, pauses)
        facts = (*self.job.facts(), *tracker_rows(settings.trackers, self.run.root))
        screen.open(facts, self.run.root, self.opening_lines, is_over=self.is_over)
        return screen

    def _take_steps(self, loader: Loader, screen: Console, lines: Steps, ahead: InFlightSteps) -> None:
        settings, schedule = self.recipe.run, self.recipe.schedule
        alone, settled = self.engine.world_size == 1, False
        checkpoints = SaveSchedule(settings, self.saves, self.engine.world_size, screen.say)
        validations = IntervalSchedule("run.evaluate_every", settings.evaluate_every)
        started = time.perf_counter()
        if self.validations.is_missing(self.state.step) and (validations.due_at_step(self.state.step) or self.is_over):
            self._select(screen)  # a signal ended the validation of this step, which was saved without one
        while not self.is_over:
            with lines.clock.waiting(), signals.immediate(alone):  # several ranks would wait for one that ends
                self.phase = "load"
                step = next(loader)
                self.phase = "train"
            if not settled:
                self.engine.warm_up(self.model, step.batches[0])
                settled = True
            tokens_seen = self.state.tokens_seen + ahead.num_tokens + step.num_tokens
            rate = learning_rate(schedule, tokens_seen)
            save = signals.save_requested() and not self.saves.is_writing
            told = self.saves.flags()._replace(stop=signals.signal_flag(), save=save)
            if self.engine.is_main:
                told = told._replace(save=told.save or checkpoints.due_by_clock(), validate=validations.due_by_clock())
            outcome = train_step(
                step,
                self.model,
                self.optimizer,
                self.engine,
                bins_per_step=self.recipe.data.bins_per_step,
                weights=self.weights,
                clip_norm=self.recipe.optimizer.clip_norm,
                learning_rate=rate,
                told=told,
            )
            ahead.add(step, outcome, rate)
            number, is_last = self.state.step + len(ahead), tokens_seen >= schedule.total_tokens
            saves, validates = checkpoints.due_at_step(number) or is_last, validations.due_at_step(number)
            told = ahead.read(all_of_them=saves or validates)
            signals.raise_if_flagged(told.stop)
            saves, validates = saves or bool(told.save), validates or bool(told.validate)
            if self.validations.best and (validates or is_last):
                self._select(screen)
                checkpoints.reset()
                validations.reset()
                lines.paused()
                continue
            if saves:
                with screen.pause("save"):
                    if self.save(is_last=is_last):
                        checkpoints.reset()
                lines.paused()
            # After the save: what ends it costs no step.
            if validates:
                with screen.pause("validation"):
                    screen.say(f"step {self.state.step} | {self.validate().line()}")
                validations.reset()
                lines.paused()
        self.seconds = time.perf_counter() - started

    def _select(self, screen: Console) -> None:
        """Validate, then save: the checkpoint of a step says how good it is; collective."""
        with screen.pause("validation"):
            scores = self.validate()
        step = self.state.step
        before = self.validations.count(scores, step)
        screen.say(f"step {step} | {scores.line()} | {self.validations.in_words()}")
        with screen.pause("save"):
            if not self.save(is_last=self.is_over, again=True):
                self.validations.best = before  # a step without a checkpoint cannot be the best one

    def validate(self) -> S:
        """Score the weights as they are, and write it down; collective."""
        self.phase = "validate"
        scores = self.validations.score(self.model, self.state)
        self.phase = "train"
        return scores

    def save(self, *, is_last: bool, again: bool = False) -> bool:
        """Begin to save the last consumed step, and return whether a save was begun; collective.

        The last save is waited for, and so is `again`, which replaces the checkpoint of a step: these return whether
        there is a checkpoint.
        """
        self.phase = "checkpoint"
        entries = (
            self.job.checkpoint_entries(self.state.cursor)
            | self.numerics.entry
            | skips_entry(self.recipe.data, self.state.step)
        )
        if scale := self.engine.scaler_state():
            entries[LOSS_SCALE] = scale
        if (best := self.validations.best) and best.validated:
            entries[BEST] = asdict(best)
        self.state = replace(self.state, entries=entries)
        is_saved = self.saves.save(self.state, waits=again, last=is_last, again=again)
        self.phase = "train"
        return is_saved

    def finish(self) -> S:
        """Validate and publish the final weights; collective."""
        self._bind()
        with ProgressBar("validating", after_s=2.0, speaks=self.engine.is_main), signals.deferred():
            self.phase = "validate"
            scores = self.validations.at_end(self.model, self.state)
        self.phase = "export"
        self.engine.on_main(lambda: publish(self.job, self.run))
        return scores

    def _bind(self) -> None:
        """Write the recipe that later attempts must agree with. If the disk cannot store it, each step tries again."""
        if not self.bound:
            tried = self.bound is not None
            self.bound = self.engine.on_main(lambda: self.run.bind(self.recipe, tells=not tried))

    def _taken(self, lines: Steps, plan: Plan, step: Step, outcome: Reading, rate: float) -> None:
        """Move the state past a step that was taken, tell of it, and learn what has become of a save; collective.

        Raises:
            RollbackError, NumericalFaultError: it went wrong, before any save of it.
        """
        before = self.state
        self.state = replace(
            before,
            step=before.step + 1,
            tokens_seen=before.tokens_seen + step.num_tokens,
            cursor=step.cursor,
            chain=extend_chain(before.chain, outcome.digests),
            skipped_steps=before.skipped_steps + (not outcome.applied),
        )
        loss = loss_of(self.job.objectives, outcome.losses) if self.job.bounds_spikes else float("nan")
        if fault := self.numerics.check(before, loss, outcome.applied, outcome.loss_scale):
            self.saves.wait(patiently=True)
            where = self.recipe, self.run, self.saves.newest, plan
            raise self.numerics.make_error(fault, *where, self.job.sample_names, self.engine.on_main)
        self.phase = "log"  # rank 0 writes, and may wait for the disk
        self._bind()
        lines.taken(self.state, step, outcome, rate, self.saves, is_last=self.is_over)
        self.phase = "checkpoint"
        self.saves.update(outcome.told, self.state.step)
        self.phase = "train"
