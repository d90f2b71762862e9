"""The checkpoint that a start continues from: verified by all ranks together, opened on each, compared with the start.

In: where it is, or a verified one. Out: an error, or a table of what differs. Kept: nothing.

Rank 0 searches (`load.newest_valid`); of each checkpoint that it finds, every rank compares a share of the blocks with
their hashes, and all of them are right or none is used.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from pretrain.checkpoint.blocks.shares import share_of
from pretrain.checkpoint.canonical import InvalidCheckpoint
from pretrain.checkpoint.load import Verified, check_data, open_checkpoint
from pretrain.engine.engine import Engine
from pretrain.engine.ranks import Ranks
from pretrain.run import stop
from pretrain.run.errors import CheckpointError, StorageError
from pretrain.run.versions import versions

T = TypeVar("T")
Check = Callable[[Verified], None]
"""Compares the data files of a checkpoint with their hashes, as `load.check_data` does."""


class _Verdict(NamedTuple):
    """What a rank found in its share."""

    word: int
    """That of a signal (`run.stop`); what was left of the share is not compared then."""
    invalid: tuple[str, str] | None = None
    """Reason and message: the bytes are not what was written."""
    failed: tuple[bool, str, str] | None = None
    """Whether the storage is at fault; reason and remedy: this rank cannot tell."""


def on_main_with_all(engine: Ranks, work: Callable[[Check], T]) -> T:
    """Do `work` on rank 0 as `engine.on_main` does, while the other ranks verify with it; collective.

    Args:
        engine: the ranks.
        work: gets what compares a checkpoint's data files, by all ranks together.
    """
    if engine.world_size == 1:
        return engine.on_main(lambda: work(check_data))

    def led() -> T:
        try:
            return work(lambda checkpoint: _compare(engine, checkpoint))
        finally:
            engine.gather(None)

    while not engine.is_main and (task := engine.gather(None)[0]):
        engine.gather(_verdict(engine, *task))
    return engine.on_main(led)


def _compare(engine: Ranks, checkpoint: Verified) -> None:
    """Rank 0: have all ranks compare their shares, and raise what any of them found."""
    with stop.deferred():  # a signal would leave the other ranks in a collective
        where = checkpoint.path, checkpoint.manifest_sha256
        engine.gather(where)
        verdicts = engine.gather(_verdict(engine, *where))
    stop.obey(sum(verdict.word for verdict in verdicts))
    for rank, verdict in enumerate(verdicts):
        if verdict.failed:
            is_storage, reason, remedy = verdict.failed
            raise (StorageError if is_storage else CheckpointError)(checkpoint.path, f"rank {rank}: {reason}", remedy)
    for verdict in verdicts:
        if verdict.invalid:
            raise InvalidCheckpoint(*verdict.invalid)


def _verdict(engine: Ranks, path: Path, manifest_sha256: str) -> _Verdict:
    """Compare the share of this rank; nothing is raised that the other ranks would wait for."""
    invalid = failed = None
    try:
        checkpoint = opened(path, manifest_sha256)
        share = share_of(checkpoint.manifest.files, engine.rank, engine.world_size)
        check_data(checkpoint, share, lambda: stop.received() is not None)
    except InvalidCheckpoint as error:
        invalid = error.reason, str(error)
    except CheckpointError as error:
        failed = isinstance(error, StorageError), error.reason, error.remedy
    return _Verdict(stop.word(), invalid, failed)


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


def changes(checkpoint: Verified | None, engine: Engine) -> list[str]:
    """What differs between the start that wrote a checkpoint and this one, as a table; nothing if nothing does.

    All of it may differ. The table says where to look if the run does not end as it did before.
    """
    if checkpoint is None:
        return []
    before, step = checkpoint.manifest.topology, checkpoint.trainer.step
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
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in cells]
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
