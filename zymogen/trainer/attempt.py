"""One attempt of a run: claim its directory, restore what it continues from, train, validate and publish.

In: a recipe, what opens its job, an engine. Out: the run directory. Kept: lines of attempts.jsonl.

What is trained, on what and with which scores, the `Job` knows; `loop` takes the steps.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from data.order.plan import EMPTY_CHAIN, Cursor
from zymogen.console.progress import ProgressBar, in_columns
from zymogen.processes import signals
from zymogen.settings.extension import code_of, external_names, require_same_code
from zymogen.settings.section import SettingClass, settings_of
from zymogen.trainer.checkpoint.best import BestCheckpoint
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint, open_checkpoint
from zymogen.trainer.checkpoint.manifest import BEST, ENTRIES, FROZEN, LOSS_SCALE, TrainerState
from zymogen.trainer.checkpoint.restore import fill_frozen, restore
from zymogen.trainer.checkpoint.retention import sweep
from zymogen.trainer.checkpoint.saver import CheckpointSaver
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import NamedState, fill
from zymogen.trainer.job import Job, TrainingRecipe, ValidationScores, publish, require_publishable
from zymogen.trainer.loop import Trainer
from zymogen.trainer.metrics_log import MetricsLog, flat_settings
from zymogen.trainer.optimizer.kinds import build_optimizer, num_stored
from zymogen.trainer.recovery.loss_monitor import LossMonitor, faults_met, require_remedy, require_same_skips
from zymogen.trainer.recovery.restart_limit import require_progress
from zymogen.trainer.recovery.run_checkpoints import RunCheckpoints
from zymogen.trainer.recovery.shared_directory import require_shared
from zymogen.trainer.recovery.watchdog import watched
from zymogen.trainer.run.attempts import attempts, recorded
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.versions import versions
from zymogen.trainer.telemetry.peak import peak
from zymogen.trainer.validation import ValidationHistory

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


class AttemptStart(NamedTuple):
    """What rank 0 has chosen for an attempt, as every rank knows it."""

    attempt: int
    """Its number."""
    step: int
    """That of its checkpoint; 0 without one."""
    checkpoint: tuple[Path, str] | None
    """Path and hash of the manifest."""
    faults: list[int]
    """Steps at which earlier attempts have met numerical faults."""


def train(
    recipe: R,
    open_job: Callable[[R, Engine], Job[S]],
    engine: Engine,
    *,
    allow_schedule_change: bool = False,
    allow_code_change: bool = False,
    despite_failures: bool = False,
    written: str = "",
) -> TrainingResult[S]:
    """Train to the recipe's last token, from the newest whole checkpoint if there is one; collective.

    Args:
        recipe: of the run.
        open_job: makes the job of a recipe under an engine; called on every rank.
        engine: how the run is spread.
        allow_schedule_change: continue although settings of class "schedule" differ from those of earlier attempts.
        allow_code_change: continue although a class of the user's, which the recipe names, has changed.
        despite_failures: start even though the last attempts failed in the same way, or saved nothing.
        written: text of a recipe that was generated, to be saved in the run directory; empty if there is none.

    Raises:
        Interrupted: a signal ended the run before that.
        RollbackError: it went wrong at a step for the first time; call it again, in new processes if possible.
        NumericalFaultError: it went wrong at the same step in two attempts.
    """
    recipe.schedule.require_tokens()
    run = RunDirectory(Path(recipe.run.directory), written)
    checkpoints = RunCheckpoints(run, recipe, allow_schedule_change, allow_code_change, engine)

    def begin() -> AttemptStart:
        with run.claimed(recipe, allow_schedule_change=allow_schedule_change, allow_code_change=allow_code_change):
            with signals.immediate():
                known, newest_step = checkpoints.attempts()
            before = attempts(known)
            require_remedy(run, known.faults, newest_step, recipe)
            asked_for = require_progress(run, before, newest_step, despite_failures=despite_failures)
            sweep(run.checkpoints)
            with signals.immediate():
                found = checkpoints.newest()
            attempt, found = checkpoints.start_attempt(found, engine.world_size, despite_failures=asked_for)
        return AttemptStart(
            attempt,
            step=found.trainer.step if found else 0,
            checkpoint=(found.path, found.manifest.self_sha256) if found else None,
            faults=[] if asked_for else faults_met(before),
        )

    trainer: Trainer[S] | None = None

    def position() -> dict[str, object]:
        step, phase = (trainer.state.step, trainer.phase) if trainer else (start.step, "start")
        return {"step": step, "phase": phase}

    def newest() -> Path | None:
        return trainer.saver.newest if trainer else start.checkpoint[0] if start.checkpoint else None

    with signals.deferred():
        require_shared(run, engine)
        require_same_code(engine.gather(code_of(recipe)) if external_names(recipe) else ())
        start = engine.on_main(begin)
        watching = watched(run, engine, start.attempt, position, recipe.run.grace_s)
        recording = recorded(run, engine.rank, start.attempt, position, newest)
        storing = checkpoints.stored_at_the_end(start.attempt)
        with storing, watching, recording, signals.blame_signal(), signals.immediate():
            job = open_job(recipe, engine)
            if not start.checkpoint:  # a start that continues does without the seconds that it takes
                engine.on_main(lambda: require_publishable(job))
            engine.on_main(lambda: run.describe_corpus(job.description()))
            engine.on_main(lambda: engine.start_trackers(flat_settings(recipe), run.root, run.read().id))
            trainer = prepare(recipe, job, engine, run, start, checkpoints)
            trainer.train()
            scores = finish(trainer)
    result = TrainingResult(scores, trainer.state, run, trainer.seconds, job, trainer.history.best)
    trainer = None  # with its model, so that the engine can train another one
    engine.release()
    return result


def prepare(
    recipe: TrainingRecipe,
    job: Job[S],
    engine: Engine,
    run: RunDirectory,
    start: AttemptStart,
    checkpoints: RunCheckpoints,
) -> Trainer[S]:
    """Build the model and the optimizer, and give them the values of a checkpoint, or first ones; collective.

    Args:
        recipe: of the run.
        job: of the run.
        engine: how the run is spread.
        run: claimed by rank 0.
        start: what rank 0 has chosen.
        checkpoints: where an earlier one is, if the chosen one is damaged.
    """
    checkpoint = open_checkpoint(*start.checkpoint) if start.checkpoint else None
    fingerprints = fingerprints_of(recipe) | job.fingerprints()
    built = job.build(run.model() if checkpoint else None)
    num_parameters = sum(parameter.numel() for parameter in built.model.parameters())
    if not checkpoint:  # run.json describes the model from here on
        engine.on_main(lambda: run.describe(model=dict(built.description), parameters=num_parameters))
    with ProgressBar("setting the model up", after_s=2.0, speaks=engine.is_main):
        opening_lines = list(job.set_up(built.model))
    peak_flops = sum(engine.gather(peak(engine.device, engine.compute_dtype, built.width)))  # ranks of a CPU share it
    loss_weights = torch.tensor([objective.weight for objective in job.objectives], device=engine.device)
    groups = job.parameter_groups(built.model)
    stored = num_stored(groups, recipe.optimizer)
    unprepared = build_optimizer(groups, recipe.optimizer)
    model, optimizer = engine.prepare(built.model, unprepared)
    named = engine.named_state(model, optimizer)
    if frozen := fill_frozen(named, built.initializers, engine.gather) or built.frozen:
        fingerprints[FROZEN] = frozen
    state = TrainerState(step=0, tokens_seen=0, cursor=Cursor(), chain=EMPTY_CHAIN, skipped_steps=0)
    if checkpoint:
        checkpoint = _restore(checkpoint, recipe, job, engine, named, start.attempt, checkpoints, fingerprints)
        state = checkpoint.trainer
    else:
        fill(named, named.names, built.initializers)
    opening_lines += describe_changes(checkpoint, engine)
    engine.on_main(lambda: run.describe(compute=opening_lines))
    log = MetricsLog(recipe, job, engine, run, start.attempt, peak_flops)
    history = ValidationHistory(job, engine, log, run, state)
    trainer = Trainer(
        recipe=recipe,
        job=job,
        engine=engine,
        run=run,
        model=model,
        optimizer=optimizer,
        loss_weights=loss_weights,
        state=state,
        saver=CheckpointSaver(run, engine, named, start.attempt, fingerprints, recipe.run, checkpoint, log.line),
        history=history,
        monitor=LossMonitor(recipe.run.spike_nats, state, start.faults),
        log=log,
        opening_lines=opening_lines,
    )
    if not trainer.is_over:
        steps = recipe.schedule.total_tokens // (recipe.data.bins_per_step * recipe.data.bin_tokens)
        trainer.saver.require_free_space(stored, with_best=job.keeps_best, steps=steps)
    return trainer


def _restore(
    checkpoint: VerifiedCheckpoint,
    recipe: TrainingRecipe,
    job: Job[S],
    engine: Engine,
    named: NamedState,
    attempt: int,
    checkpoints: RunCheckpoints,
    fingerprints: Mapping[str, str],
) -> VerifiedCheckpoint:
    """Restore model and optimizer from a checkpoint of this run, or from an earlier one if that one is damaged."""
    known = ENTRIES | job.entry_names | ({BEST} if job.keeps_best else frozenset())
    while True:
        require_same_run(checkpoint, fingerprints)
        require_same_skips(checkpoint, recipe.data)
        job.require_entries(checkpoint.trainer.entries, checkpoint.trainer.cursor)
        try:
            state = restore(checkpoint, named, engine, fingerprints.get(FROZEN), known)
        except InvalidCheckpointError as error:  # on every rank
            checkpoint = checkpoints.fall_back(checkpoint, error, attempt)
            continue
        engine.restore_scaler(state.entries.get(LOSS_SCALE))
        return checkpoint


def finish(trainer: Trainer[S]) -> S:
    """Validate and publish the final weights; collective."""
    if trainer.has_recipe is False:  # None: nothing was trained, and run.json says what was
        trainer.write_recipe()
    with ProgressBar("validating", after_s=2.0, speaks=trainer.engine.is_main), signals.deferred():
        trainer.phase = "validate"
        scores = trainer.history.at_end(trainer.model, trainer.state)
    trainer.phase = "export"
    trainer.engine.on_main(lambda: publish(trainer.job, trainer.run))
    return scores


def fingerprints_of(recipe: Any) -> dict[str, str]:
    """SHA-256 of all settings of class identity, and of all of class schedule, with their names."""

    def of(setting_class: SettingClass) -> str:
        chosen = {name: value for name, its_class, value in settings_of(recipe) if its_class is setting_class}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    return {"identity": of(SettingClass.IDENTITY), "schedule": of(SettingClass.SCHEDULE)}


def require_same_run(checkpoint: VerifiedCheckpoint, fingerprints: Mapping[str, str]) -> None:
    """run.json has been compared already; this catches a checkpoint that was copied in from elsewhere."""
    for name in ("identity", "corpus", "split"):
        found = checkpoint.manifest.fingerprints[name]
        if found != fingerprints[name]:
            raise ValueError(
                f"{checkpoint.path} was written by another run: its {name} is {found}, this run's is "
                f"{fingerprints[name]}; remove it, or choose another run.directory"
            )


def describe_changes(checkpoint: VerifiedCheckpoint | None, engine: Engine) -> list[str]:
    """What differs between the start that wrote a checkpoint and this one, as a table; nothing if nothing does.

    All of it may differ. The table says where to look if the run does not end as it did before.
    """
    if checkpoint is None:
        return []
    before, step = checkpoint.manifest, checkpoint.trainer.step
    rows = [
        ("processes", before.world_size, engine.world_size),
        ("engine", before.engine, engine.name),
        ("precision", before.precision, engine.precision),
    ]
    present = versions()
    rows += [(name, then, present.get(name, "none")) for name, then in sorted(checkpoint.manifest.versions.items())]
    cells = [(name, str(then), str(now)) for name, then, now in rows if then != now]
    if not cells:
        return []
    cells.insert(0, (f"since step {step}", "in the checkpoint", "in this run"))
    lines = in_columns(cells)
    if before.world_size != engine.world_size or before.engine != engine.name:
        lines.append(
            "order of samples and tokens of a step: as before; gradients: added in another order, which changes last "
            f"bits; speeds before step {step} are no measure for those after it"
        )
    if before.precision != engine.precision:
        lines.append(
            f"precision: {engine.precision} from here on; up to step {step} it was {before.precision}: to keep that, "
            f"launch with --mixed_precision {before.precision}"
        )
    return lines
