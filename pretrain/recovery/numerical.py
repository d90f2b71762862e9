"""Numerical faults: gradients that are not finite, or a loss that leaps. The run falls back once, and then stops.

In: what each step did. Out: `NumericalFault`, on every rank after the same step. Kept: the losses of the latest steps,
in memory, also while the process falls back; in the run directory, `faults.jsonl`.

What a fault of the hardware has caused does not come again when the same steps are taken once more from the newest
checkpoint; what the data, the schedule or the program causes does. So the first fault at a step ends the attempt, and
the same processes begin another one. Where an earlier attempt has met a fault at this step, the run stops, and names
the sequences that the model was fed there.
"""

import math
import shlex
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from data.disk_error import said
from data.order.plan import Cursor, Plan
from pretrain.checkpoint.manifest import SKIPPED_IN_A_ROW, TrainerState, step_of_name
from pretrain.recovery.breaker import counted
from pretrain.recovery.starts import starts
from pretrain.run import records
from pretrain.run.directory import RunDirectory

T = TypeVar("T")
Names = Callable[[NDArray[np.int64]], Sequence[str]]
"""Gives the names of sequences, from the sample ids of a plan."""

MOST_SKIPPED = 3
"""Steps in a row without a finite gradient that are a fault. In fp16 a loss scale above 1 may be the cause; such a step
halves the scale and does not count."""
REMEMBERED, ENOUGH = 64, 16
"""Steps over whose losses the median is taken, and how many there must be."""
_SHOWN_BINS, _SHOWN_NAMES = 32, 10


class Fault(NamedTuple):
    """What is wrong with a step."""

    said: str
    """In words."""
    way: str = ""
    """What may be done about it, beside what may be done about every fault."""


class NumericalFault(FloatingPointError):
    """The numbers of a run went wrong.

    Args:
        message: how.
        is_again: whether the run stops, as an earlier attempt has met it at the same step; if not, it falls back.
    """

    def __init__(self, message: str, *, is_again: bool) -> None:
        super().__init__(message)
        self.is_again = is_again


def falling_back(attempt: Callable[[], T], forget: Callable[[], None]) -> T:
    """Make attempts until one ends otherwise than by a fault that is met for the first time; collective.

    Args:
        attempt: to train to the end, from the newest checkpoint on.
        forget: releases the model of the last one.
    """
    while True:
        try:
            return attempt()
        except NumericalFault as fault:
            if fault.is_again:
                raise
        forget()  # now that no traceback holds the model


class Numerics:
    """What the latest steps of a run did, over all attempts of this process; the same on every rank.

    Args:
        spike_nats: rise of the loss above the median that is a fault; None: none is.
    """

    def __init__(self, spike_nats: float | None) -> None:
        self._spike_nats = spike_nats
        self._losses: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        self._begun: deque[TrainerState] = deque(maxlen=MOST_SKIPPED)
        self._skipped_in_a_row = 0
        self._faults: frozenset[int] = frozenset()

    def begin(self, found: TrainerState | None, faults: Collection[int]) -> None:
        """An attempt begins, from a checkpoint if one was found; earlier ones have met faults at the steps `faults`."""
        step, entries = (found.step, found.entries) if found else (0, {})
        self._losses = deque((each for each in self._losses if each[0] <= step), maxlen=REMEMBERED)
        self._begun.clear()
        self._skipped_in_a_row = entries.get(SKIPPED_IN_A_ROW, {}).get("steps", 0)
        self._faults = frozenset(faults)

    @property
    def kept(self) -> dict[str, dict[str, int]]:
        """What a checkpoint of the last step keeps, so that an attempt from there meets a fault at the same step."""
        return {SKIPPED_IN_A_ROW: {"steps": self._skipped_in_a_row}} if self._skipped_in_a_row else {}

    def fault_of(self, before: TrainerState, loss: float, applied: bool, loss_scale: float) -> Fault | None:
        """What is wrong with a step, if anything is.

        Args:
            before: where the run stood before the step.
            loss: of the step; NaN without any target.
            applied: whether its gradient was finite.
            loss_scale: of the step.
        """
        step = before.step + 1
        self._begun.append(before)
        if not applied:
            self._skipped_in_a_row += loss_scale <= 1
            if self._skipped_in_a_row < MOST_SKIPPED:
                return None
            return Fault(f"the gradient was not finite in {MOST_SKIPPED} steps in a row, up to step {step}")
        self._skipped_in_a_row = 0
        losses = [each for _, each in self._losses]
        rise = loss - median(losses) if len(losses) >= ENOUGH else 0.0
        if self._spike_nats is not None and rise > self._spike_nats:
            for earlier in list(self._begun)[:-1]:
                self._begun.remove(earlier)
            return Fault(
                f"the loss was {loss:.3f} at step {step}, {rise:.3f} above the median of the {len(losses)} steps "
                f"before it (run.spike_nats = {self._spike_nats:g})",
                ", or train through it with run.spike_nats=none",
            )
        if math.isfinite(loss):
            self._losses.append((step, loss))
        return None

    def error(
        self,
        fault: Fault,
        run: RunDirectory,
        newest: Path | None,
        plan: Plan,
        names: Names,
        on_main: Callable[[Callable[[], str]], str],
    ) -> NumericalFault:
        """What is raised for a fault of the last step; collective.

        Args:
            fault: what is wrong with it.
            run: which ends, or falls back.
            newest: the newest checkpoint.
            plan: of the run's bins.
            names: of sequences.
            on_main: does something on rank 0, and gives all ranks the result.
        """
        step = self._begun[-1].step + 1
        if step not in self._faults:
            to = f"to {newest.name}" if newest else "to its first step, as it has no checkpoint"
            return NumericalFault(f"{fault.said}; the run falls back once, {to}", is_again=False)
        base = (step_of_name(newest.name) if newest else None) or 0
        again = [state for state in self._begun if state.step >= base]
        return NumericalFault(on_main(lambda: _advice(run, fault, again, newest, plan, names)), is_again=True)


def faults_met(run: RunDirectory) -> list[int]:
    """The steps at which starts of a run have ended by a numerical fault; rank 0 only.

    It is read from the disk, so that another process knows it, too. Starts before one that finished, or that
    somebody asked for by name, are not counted.
    """
    name = NumericalFault.__name__
    return [start.cause.step for start in counted(starts(run)) if start.cause and start.cause.error == name]


def _advice(
    run: RunDirectory,
    fault: Fault,
    steps: Sequence[TrainerState],
    newest: Path | None,
    plan: Plan,
    names: Names,
) -> str:
    """The message of a fault that is met again; what its steps were fed is written to faults.jsonl; rank 0 only.

    Args:
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
        for place, (bin_, _) in enumerate(islice(plan.bins(Cursor(**state.cursor)), size))
        if state.step * size + place not in left_out
    }
    bins = list(fed)
    left = sorted(left_out.union(bins))  # with those that are left out already, which are not to come back
    line = {
        "time": records.now(),
        "attempt": run.last_attempt(),
        "step": steps[-1].step + 1,
        "fault": fault.said,
        "bins": bins,
        **({"skip_bins": left} if can_skip else {}),
        "sequences": [list(each) for each in fed.values()],
    }
    file = run.root / "faults.jsonl"
    try:
        records.append(file, line)
        where = f"all: {file}"
    except OSError as error:
        where = f"{file} was not written: {said(error)}"
    each = list(dict.fromkeys(name for of_bin in fed.values() for name in of_bin))
    shown = ", ".join(each[:_SHOWN_NAMES]) + (", ..." if len(each) > _SHOWN_NAMES else "")
    listed = str(left).replace(" ", "") if len(left) <= _SHOWN_BINS else f'[the list "skip_bins" of {file}]'
    ways = "lower schedule.peak_lr or lengthen schedule.warmup"
    ways += fault.way + (f", or leave out what it was fed there with data.skip_bins={listed}" if can_skip else "")
    begins = f"continues from {newest.name}" if newest else "begins at its first step, as it has no checkpoint"
    return (
        f"{fault.said}, where it was met before; {ways}, and start again with --allow-schedule-change: the run "
        f"{begins}. The bins {bins[0]} to {bins[-1]} held {len(each)} sequences: {shown} ({where}). What led "
        f"to it is drawn by: python -m pretrain.report {shlex.quote(str(run.root))}"
    )
