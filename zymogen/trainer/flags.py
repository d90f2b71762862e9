"""The flags of a step: what a rank has for the others, summed over ranks with the counts of each step."""

from collections.abc import Iterable
from typing import NamedTuple, Self


class StepFlags(NamedTuple):
    """Flags of one rank, or their sums over ranks."""

    interrupt: int = 0
    """`signals.signal_flag()` of each rank."""
    writing: int = 0
    """Whether this rank has not ended its part of the save that is being written; rank 0 has when it is published."""
    failed: int = 0
    """Whether its part has failed."""
    overdue: int = 0
    """Rank 0: whether the save takes longer than saves may fail."""
    save: int = 0
    """Rank 0: whether its clock says that a checkpoint is due. Any rank: whether SIGUSR1 asks for one."""
    validate: int = 0
    """Rank 0: whether its clock says that a validation is due."""

    @property
    def any_set(self) -> bool:
        """Whether something is to be done before which no step may be queued."""
        return bool(self.interrupt or self.save or self.validate)

    @classmethod
    def total(cls, flags: Iterable["StepFlags"]) -> Self:
        """Return the elementwise sum of one or more."""
        return cls(*map(sum, zip(*flags, strict=True)))


NO_FLAGS = StepFlags()
