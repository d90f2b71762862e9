"""The pace of saves: when a checkpoint is due, also where `run.checkpoint_every` is "auto".

In: what saves cost, as this attempt measured it; how often the machine fails. Out: whether a save is due. Kept: when
the last one began.

The interval is Young's: sqrt(2 C M), with C the training time that a save costs and M the mean time between two
failures of all processes together (J. W. Young, A first order approximation to the optimum checkpoint interval, 1974).
C is the time that training waits, and what steps lose while the save is written. A failure undoes half an interval, and
the save that was being written: the first costs as much as the saves, the second is the same at every interval.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import monotonic

from zymogen.console.progress import clock_time
from zymogen.settings.interval import Interval, seconds
from zymogen.trainer.checkpoint.saver import CheckpointSaver
from zymogen.trainer.run.interval_schedule import IntervalSchedule
from zymogen.trainer.run.settings import AUTO, RunSettings

_FIRST_S = 60.0
"""The first save, of which the others' pace follows, is due after so much time."""
_OF_A_SAVE = 1.5
"""An interval is at least so many times as long as a save takes, so that one has ended when the next one is due."""
_STEPS = 32
"""Steps whose time counts, of those beside a save and of the others."""
_OTHER = 1.25
"""A pace that differs by less than this factor from the one that was told last is not told again."""


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """How often checkpoints are saved, and what that costs."""

    seconds: float
    """Between two saves."""
    stall_s: float
    """How long training waits for one."""
    save_s: float
    """How long it takes until one is published."""
    slowdown: float
    """How much longer a step takes meanwhile: 0.1 is a tenth."""
    failure_s: float
    """Mean time between two failures of the run."""
    num_bytes: int
    """Size of a checkpoint."""

    @property
    def loss(self) -> float:
        """The share of time that saves and repeated training are expected to cost; starts are not in it."""
        cost_s = _cost_s(self.stall_s, self.save_s, self.slowdown)
        return cost_s / self.seconds + (self.seconds / 2 + self.save_s) / self.failure_s

    def in_words(self) -> str:
        """A line for the screen."""
        return (
            f"checkpoint every {clock_time(self.seconds)} (auto): a save stalls training for {self.stall_s:.2g} s, "
            f"takes {self.save_s:.2g} s and makes steps {self.slowdown:.0%} longer meanwhile, a failure is expected "
            f"every {self.failure_s / 3600:,.0f} h; expected loss {self.loss:.2g} of the time, at most "
            f"{clock_time(self.seconds + self.save_s)} of training at a failure; {self.num_bytes / 1e6:,.0f} MB each, "
            f"{self.num_bytes * 3600 / self.seconds / 1e9:,.2f} GB written an hour"
        )


def _cost_s(stall_s: float, save_s: float, slowdown: float) -> float:
    """Training time that a save costs. In `save_s` seconds, steps do the work of `save_s / (1 + slowdown)`."""
    return stall_s + save_s * slowdown / (1 + slowdown)


def optimal_interval(
    stall_s: float, save_s: float, num_bytes: int, processes: int, settings: RunSettings, slowdown: float = 0.0
) -> SaveInterval:
    """The pace that a save of this cost asks for.

    Args:
        stall_s: how long training waits for a save.
        save_s: how long one takes until it is published.
        num_bytes: size of a checkpoint.
        processes: that train together; each is counted as a GPU.
        settings: how often one fails, and how much training a failure may cost at most.
        slowdown: how much longer a step takes while a save is written: 0.1 is a tenth.
    """
    failure_s = 3600 * settings.gpu_hours_per_failure / processes
    best = math.sqrt(2 * _cost_s(stall_s, save_s, slowdown) * failure_s)
    most = seconds("run.may_lose", settings.may_lose) - save_s  # what is being written is lost, too
    return SaveInterval(max(_OF_A_SAVE * save_s, min(most, best)), stall_s, save_s, slowdown, failure_s, num_bytes)


class SaveSchedule(IntervalSchedule):
    """When a save is due.

    Args:
        settings: say at which interval; "auto" begins with a save after a minute.
        saves: those of the attempt, which know what they cost.
        processes: that train together.
        say: tells the user the pace that was chosen.
    """

    def __init__(
        self, settings: RunSettings, saves: CheckpointSaver, processes: int, say: Callable[[str], None]
    ) -> None:
        self._is_auto = settings.checkpoint_every == AUTO
        super().__init__("run.checkpoint_every", f"{_FIRST_S} s" if self._is_auto else settings.checkpoint_every)
        self._settings, self._saves, self._processes, self._say = settings, saves, processes, say
        self._told: SaveInterval | None = None
        self._steps: dict[bool, deque[float]] = {writing: deque(maxlen=_STEPS) for writing in (False, True)}
        self._last = monotonic(), False

    def due_at_step(self, step: int) -> bool:
        """Whether a save is due with this step, on every rank: also of one that stays for good."""
        return super().due_at_step(step) or self._settings.stays(step)

    def due_by_clock(self, *, first: bool = False, last: bool = False) -> bool:
        """Whether the interval has passed by this rank's clock, or a save that failed is to be tried again.

        Called once a step. While another save is being written, none is due. "auto" is what the latest saves ask for.
        """
        self._time_step()
        if self._is_auto and self._saves.cost:
            found = optimal_interval(*self._saves.cost, self._processes, self._settings, self._slowdown())
            self._interval = Interval(None, found.seconds)
            told = self._told.seconds if self._told else 0.0
            if not told / _OTHER < found.seconds < told * _OTHER:
                self._told = found
                self._say(found.in_words())
        return not self._saves.is_writing and (super().due_by_clock(first=first, last=last) or self._saves.retry_due)

    def _time_step(self) -> None:
        """Note how long the step took. One in which a save began or ended counts neither as beside it nor as alone."""
        (began, was_writing), self._last = self._last, (monotonic(), self._saves.is_writing)
        now, writing = self._last
        if writing == was_writing:
            self._steps[writing].append(now - began)

    def _slowdown(self) -> float:
        """How much longer a step takes beside a save; 0 as long as no step of either kind was timed."""
        alone, beside = (median(self._steps[writing] or [0.0]) for writing in (False, True))
        return max(0.0, beside / alone - 1) if alone else 0.0
