"""Bins that a run leaves out by `data.skip_bins`: what is left out so far stays left out.

In: the recipe's list, a checkpoint. Out: an error where they disagree about the past. Kept: an entry of each
checkpoint, once a bin was left out. One of an early version has none, because it left none out.
"""

from typing import Any

from data.order.settings import PackingSettings
from pretrain.checkpoint.load import VerifiedCheckpoint
from pretrain.checkpoint.manifest import SKIPPED_BINS, TrainerState
from zymogen.settings.section import listed

_SHOWN = 10


def skipped_bins(data: PackingSettings, steps: int) -> list[int]:
    """The bins that the first `steps` steps of a run leave out, in order."""
    return sorted(bin_ for bin_ in data.skip_bins if bin_ < steps * data.bins_per_step)


def to_entry(data: PackingSettings, steps: int) -> dict[str, dict[str, Any]]:
    """What a checkpoint after `steps` steps keeps of that."""
    bins = skipped_bins(data, steps)
    return {SKIPPED_BINS: {"bins": bins}} if bins else {}


def from_entry(trainer: TrainerState) -> list[int]:
    """The bins that were left out up to a checkpoint."""
    return list(trainer.entries.get(SKIPPED_BINS, {}).get("bins", []))


def require_same_skipped_bins(checkpoint: VerifiedCheckpoint, data: PackingSettings) -> None:
    """Check that a run can continue from a checkpoint and leave out what its recipe says.

    Raises:
        ValueError: it would have to leave out what is trained already, or to train what it has left out.
    """
    before, now = set(from_entry(checkpoint.trainer)), set(skipped_bins(data, checkpoint.trainer.step))
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
