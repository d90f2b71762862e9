"""The checkpoint that a start continues from: opened on each rank, and compared with what the start has.

In: where it is, or a verified one. Out: an error, or a line that says what differs. Kept: nothing.
"""

from collections.abc import Mapping
from pathlib import Path

from pretrain.checkpoint.canonical import InvalidCheckpoint
from pretrain.checkpoint.load import Verified, open_checkpoint
from pretrain.run.errors import CheckpointError


def opened(path: Path, manifest_sha256: str) -> Verified:
    """The checkpoint that rank 0 has chosen, on this rank.

    Raises:
        CheckpointError: this rank does not see the same.
    """
    try:
        return open_checkpoint(path, manifest_sha256)
    except InvalidCheckpoint as error:  # rank 0 has just verified it
        raise CheckpointError(path, str(error), "let all ranks see one file system") from error


def require_same_run(checkpoint: Verified, fingerprints: Mapping[str, str]) -> None:
    """run.json has been compared already; this catches a checkpoint that was copied in from elsewhere."""
    for name in ("identity", "corpus", "split"):
        found = checkpoint.manifest.fingerprints[name]
        if found != fingerprints[name]:
            raise ValueError(
                f"{checkpoint.path} was written by another run: its {name} is {found}, this run's is "
                f"{fingerprints[name]}; remove it, or choose another run.directory"
            )


def changed_precision(checkpoint: Verified | None, precision: str) -> list[str]:
    """A line if the run continues in another precision than its newest checkpoint was trained in."""
    if checkpoint is None or (before := checkpoint.manifest.topology.precision) == precision:
        return []
    return [
        f"precision: {precision} from here on; up to step {checkpoint.trainer.step} it was {before}: to keep that, "
        f"launch with --mixed_precision {before}"
    ]
