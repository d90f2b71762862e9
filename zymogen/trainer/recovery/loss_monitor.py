"""Numerical faults: gradients that are not finite, or a loss that leaps. The run rolls back once, and then stops.

In: what each step did; bins that `data.skip_bins` leaves out. Out: `RollbackError` or `NumericalFaultError`, on every
rank after the same step. Kept: the losses of the latest steps, and what was left out so far, in each checkpoint; in the
run directory, `faults.jsonl`.

What a fault of the hardware has caused does not come again when the same steps are taken once more from the newest
checkpoint; what the data, the schedule or the program causes does. So the first fault at a step is a `RollbackError`:
fresh processes continue from the newest checkpoint. Where an earlier attempt has met a fault at this step, the run
stops, and names the sequences that the model was fed there. Later starts are refused until something that may help was
changed.
"""

import json
import math
import shlex
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.order.plan import Plan
from data.order.settings import PackingSettings
from zymogen.files.durable import describe_os_error
from zymogen.processes.errors import RollbackError
from zymogen.settings.section import listed
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint
from zymogen.trainer.checkpoint.manifest import LOSS_MONITOR, SKIPPED_BINS, TrainerState, step_of_name
from zymogen.trainer.recovery.restart_limit import consecutive_failures
from zymogen.trainer.run import records
from zymogen.trainer.run.attempts import Attempt
from zymogen.trainer.run.directory import RunDirectory

_SHOWN = 10


Names = Callable[[NDArray[np.int64]], Sequence[str]]
"""Gives the names of sequences, from the sample ids of a plan."""

MOST_SKIPPED = 3
"""Steps in a row without a finite gradient that are a fault. In fp16 a loss scale above 1 may be the cause; such a step
halves the scale and does not count."""
REMEMBERED, ENOUGH = 64, 16
"""Steps over whose losses the median is taken, and how many there must be."""
_SHOWN_BINS, _SHOWN_NAMES = 32, 10


class FaultDescription(NamedTuple):
    """What is wrong with a step."""

    said: str
    """In words."""
    way: str = ""
    """What may be done about it, beside what may be done about every fault."""


class NumericalFaultError(FloatingPointError):
    """The numbers of a run went wrong at a step where an earlier attempt has met a fault: the run stops."""


class LossMonitor:
    """What the latest steps of a run did; the same on every rank.

    Args:
        spike_nats: rise of the loss above the median that is a fault; None: none is.
        found: the checkpoint's record, if the attempt begins with one.
        faults: the steps at which earlier attempts have met a fault.
    """

    def __init__(self, spike_nats: float | None, found: TrainerState | None, faults: Collection[int]) -> None:
        self._spike_nats, self._faults = spike_nats, frozenset(faults)
        entry = found.entries.get(LOSS_MONITOR, {}) if found else {}
        self._losses: deque[float] = deque(entry.get("losses", ()), maxlen=REMEMBERED)
        self._skipped_in_a_row: int = entry.get("skipped_in_a_row", 0)
        self._begun: deque[TrainerState] = deque(maxlen=MOST_SKIPPED)

    @property
    def entry(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint of the last step keeps, so that an attempt from there meets a fault at the same step."""
        return {LOSS_MONITOR: {"losses": list(self._losses), "skipped_in_a_row": self._skipped_in_a_row}}

    def check(
        self, before: TrainerState, loss: float | None, applied: bool, loss_scale: float
    ) -> FaultDescription | None:
        """What is wrong with a step, if anything is.

        Args:
            before: where the run stood before the step.
            loss: of the step; None without any target, or where it has no bound.
            applied: whether its gradient was finite.
            loss_scale: of the step.
        """
        step = before.step + 1
        self._begun.append(before)
        if not applied:
            self._skipped_in_a_row += loss_scale <= 1
            if self._skipped_in_a_row < MOST_SKIPPED:
                return None
            return FaultDescription(f"the gradient was not finite in {MOST_SKIPPED} steps in a row, up to step {step}")
        self._skipped_in_a_row = 0
        if loss is None:
            return None
        rise = loss - median(self._losses) if len(self._losses) >= ENOUGH else 0.0
        if self._spike_nats is not None and rise > self._spike_nats:
            for earlier in list(self._begun)[:-1]:
                self._begun.remove(earlier)
            return FaultDescription(
                f"the loss was {loss:.3f} at step {step}, {rise:.3f} above the median of the {len(self._losses)} steps "
                f"before it (run.spike_nats = {self._spike_nats:g})",
                ", or train through it with run.spike_nats=none",
            )
        if math.isfinite(loss):
            self._losses.append(loss)
        return None

    def make_error(
        self,
        fault: FaultDescription,
        recipe: Any,
        run: RunDirectory,
        newest: Path | None,
        plan: Plan,
        names: Names,
        on_main: Callable[[Callable[[], str]], str],
    ) -> RollbackError | NumericalFaultError:
        """What is raised for a fault of the last step; collective.

        Args:
            fault: what is wrong with it.
            recipe: of the run.
            run: which ends, or rolls back.
            newest: the newest checkpoint.
            plan: of the run's bins.
            names: of sequences.
            on_main: does something on rank 0, and gives all ranks the result.
        """
        step = self._begun[-1].step + 1
        if step not in self._faults:
            to = f"to {newest.name}" if newest else "to its first step, as it has no checkpoint"
            return RollbackError(f"{fault.said}; the run rolls back once, {to}")
        base = (step_of_name(newest.name) if newest else None) or 0
        again = [state for state in self._begun if state.step >= base]
        return NumericalFaultError(on_main(lambda: _advice(recipe, run, fault, again, newest, plan, names)))


def faults_met(all_starts: Sequence[Attempt]) -> list[int]:
    """The steps at which starts of a run have ended by a numerical fault.

    Starts before one that finished, or that somebody asked for by name, are not counted.
    """
    names = RollbackError.__name__, NumericalFaultError.__name__
    return [
        start.cause.step for start in consecutive_failures(all_starts) if start.cause and start.cause.error in names
    ]


def remedies_of(recipe: Any) -> str:
    """Hash of what may help against a numerical fault: bins that are left out, the schedule, the bound of the loss."""
    skipped = sorted(set(getattr(recipe.data, "skip_bins", ())))
    chosen = [skipped, asdict(recipe.schedule), recipe.run.spike_nats]
    return sha256(json.dumps(chosen, default=str).encode()).hexdigest()[:16]


def require_remedy(run: RunDirectory, faults: Sequence[dict[str, Any]], newest_step: int, recipe: Any) -> None:
    """Refuse a start that would take a step again whose numerical fault has stopped the run, with nothing changed.

    Args:
        run: claimed by this process.
        faults: lines of faults.jsonl, of all machines.
        newest_step: of the newest checkpoint on any of them; 0 without one.
        recipe: of the start.

    Raises:
        ValueError: it is refused, with the step, the bins and what to type.
    """
    now = remedies_of(recipe)
    for line in faults:
        if line.get("remedies") == now and line["step"] > newest_step:
            raise ValueError(
                f"{run.root}: the numerical fault at step {line['step']:,}, which stopped attempt {line['attempt']}, "
                f"would come again, as nothing was changed: {line['fault']}, fed the bins {line['bins'][0]} to "
                f"{line['bins'][-1]}; {line['remedy']}, and start again with --allow-schedule-change; "
                "--despite-failures does not help"
            )


def _advice(
    recipe: Any,
    run: RunDirectory,
    fault: FaultDescription,
    steps: Sequence[TrainerState],
    newest: Path | None,
    plan: Plan,
    names: Names,
) -> str:
    """The message of a fault that is met again; what its steps were fed is written to faults.jsonl; rank 0 only.

    Args:
        recipe: of the run.
        run: whose directory gets the file.
        fault: what was wrong with the last one of its steps.
        steps: where the run stood before each step that is taken again.
        newest: the newest checkpoint, from which that is.
        plan: of the run's bins.
        names: of sequences.
    """
    size, can_skip = plan.settings.bins_per_step, "skip_bins" in getattr(plan.settings, "__dataclass_fields__", ())
    left_out = set(plan.settings.skip_bins) if can_skip else set()
    fed = {
        state.step * size + place: names(bin_.samples)
        for state in steps
        for place, (bin_, _) in enumerate(islice(plan.bins(state.cursor), size))
        if state.step * size + place not in left_out
    }
    bins = list(fed)
    left = sorted(left_out.union(bins))  # with those that are left out already, which are not to come back
    file = run.faults
    listed = str(left).replace(" ", "") if len(left) <= _SHOWN_BINS else f'[the list "skip_bins" of {file}]'
    remedy = "lower schedule.peak_lr or lengthen schedule.warmup"
    remedy += fault.way + (f", or leave out what it was fed there with data.skip_bins={listed}" if can_skip else "")
    line = {
        "time": records.now(),
        "attempt": run.last_attempt(),
        "step": steps[-1].step + 1,
        "fault": fault.said,
        "bins": bins,
        **({"skip_bins": left} if can_skip else {}),
        "sequences": [list(each) for each in fed.values()],
        "remedy": remedy,
        "remedies": remedies_of(recipe),
    }
    try:
        records.append(file, line)
        where = f"all: {file}"
    except OSError as error:
        where = f"{file} was not written: {describe_os_error(error)}"
    each = list(dict.fromkeys(name for of_bin in fed.values() for name in of_bin))
    shown = ", ".join(each[:_SHOWN_NAMES]) + (", ..." if len(each) > _SHOWN_NAMES else "")
    begins = f"continues from {newest.name}" if newest else "begins at its first step, as it has no checkpoint"
    return (
        f"{fault.said}, where it was met before; {remedy}, and start again with --allow-schedule-change: the run "
        f"{begins}. The bins {bins[0]} to {bins[-1]} held {len(each)} sequences: {shown} ({where}). What led "
        f"to it is drawn by: python -m pretrain.report {shlex.quote(str(run.root))}"
    )


def skipped_bins(data: PackingSettings, steps: int) -> list[int]:
    """The bins that the first `steps` steps of a run leave out, in order."""
    return sorted(bin_ for bin_ in data.skip_bins if bin_ < steps * data.bins_per_step)


def skips_entry(data: PackingSettings, steps: int) -> dict[str, dict[str, Any]]:
    """What a checkpoint after `steps` steps keeps of that."""
    bins = skipped_bins(data, steps)
    return {SKIPPED_BINS: {"bins": bins}} if bins else {}


def skipped_bins_of(trainer: TrainerState) -> list[int]:
    """The bins that were left out up to a checkpoint."""
    return list(trainer.entries.get(SKIPPED_BINS, {}).get("bins", []))


def require_same_skips(checkpoint: VerifiedCheckpoint, data: PackingSettings) -> None:
    """Check that a run can continue from a checkpoint and leave out what its recipe says.

    Raises:
        ValueError: it would have to leave out what is trained already, or to train what it has left out.
    """
    before, now = set(skipped_bins_of(checkpoint.trainer)), set(skipped_bins(data, checkpoint.trainer.step))
    where = f"{checkpoint.path}, where the run would continue, after {checkpoint.trainer.step:,} steps"
    if trained := now - before:
        raise ValueError(
            f"data.skip_bins names {_shown(trained)}, already trained up to {where}: take them out of the list, or "
            "move the checkpoints after them away, so that the run continues from one before them"
        )
    if missing := before - now:
        raise ValueError(
            f"data.skip_bins lacks {_shown(missing)}, left out up to {where}: put them back into the list, as they are "
            "not trained any more"
        )


def _shown(bins: set[int]) -> str:
    return f"{'the bins' if len(bins) > 1 else 'the bin'} {listed([*map(str, sorted(bins))], _SHOWN)}"
