"""Write a checkpoint so that it exists only when it is whole.

Every rank writes what it stores into one folder, `.tmp-step-*`, whose name all of them know, and flushes it. Rank 0
then adds index, trainer state and, last, the manifest with all hashes; one rename to `step-000012000` publishes it. A
crash at any point before the rename leaves a folder that no reader looks at and `retention.sweep` removes. Each rank
tells rank 0 by a file, its receipt, that its part is on disk. There is no collective: parts are written in threads
beside training, whose collectives must come in one order on all ranks.
"""

import os
import shutil
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zymogen.files.durable import flush
from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError, canonical, parsed
from zymogen.trainer.checkpoint.digests.digest import identity, sums
from zymogen.trainer.checkpoint.files.blocks import (
    PARTS,
    FileEntry,
    data_file,
    write_file,
    write_tensors,
)
from zymogen.trainer.checkpoint.files.index import INDEX_FILE, TensorIndex, index_bytes
from zymogen.trainer.checkpoint.load import MADE_WAY, folder_mode, quarantine, require_exact_files, supersede, verify
from zymogen.trainer.checkpoint.manifest import (
    FROZEN,
    MANIFEST_FILE,
    TRAINER_FILE,
    CheckpointManifest,
    TrainerState,
    checkpoint_name,
)
from zymogen.trainer.checkpoint.object_store.bucket import CheckpointBucket, prefix_of
from zymogen.trainer.checkpoint.writer import StagedState

_FOLDER = "receipts"
_LOOK_S = 0.02
"""Between two looks for receipts."""


class SaveAbandoned(Exception):
    """The save was given up while rank 0 waited for another rank's part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReceipt:
    """What one rank wrote of a checkpoint; all of it is on disk."""

    rank: int
    files: tuple[FileEntry, ...]
    packed: Mapping[str, str]
    """Part -> what `pieces` returns, int64 in base64, which is parsed at once."""

    def pieces(self, part: str) -> NDArray[np.int64]:
        """``(pieces, 6)``: tensor by its place among the names, file, start, stop and both sums of the digest."""
        return np.frombuffer(b64decode(self.packed[part]), np.int64).reshape(-1, 6)

    def leave(self, temporary: Path) -> None:
        """Give rank 0 the receipt, whole. It need not survive a power cut: nothing is published then."""
        folder = temporary / _FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{self.rank:05d}.json"
        unfinished = path.with_suffix(".new")
        unfinished.write_bytes(canonical(asdict(self)))
        os.rename(unfinished, path)


def collect(temporary: Path, own: RankReceipt, ranks: int, is_given_up: Callable[[], bool]) -> list[RankReceipt]:
    """The receipts of all ranks, in their order; rank 0 waits for the others' and removes them.

    Raises:
        SaveAbandoned: `is_given_up` said so before all were there.
    """
    receipts = [own]
    while len(receipts) < ranks:
        path = temporary / _FOLDER / f"rank-{len(receipts):05d}.json"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            if is_given_up():
                raise SaveAbandoned from None
            time.sleep(_LOOK_S)
            continue
        receipts.append(parsed(RankReceipt, raw, "receipt"))
    if ranks > 1:
        shutil.rmtree(temporary / _FOLDER)
    return receipts


TEMPORARY = ".tmp-"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavePlan:
    """One save, as every rank knows it."""

    checkpoints_dir: Path
    trainer: TrainerState
    attempt: int
    parent: str | None
    """`self_sha256` of the checkpoint before it; only rank 0 needs to know it."""
    fingerprints: Mapping[str, str]
    world_size: int
    engine: str
    precision: str
    versions: Mapping[str, str]
    number: int = 0
    """The number of the save in this attempt: no two have one folder, also where a step is saved again."""
    shared: bool = False
    """Whether others may read the folder of all checkpoints, as far as the umask lets them."""
    bucket: CheckpointBucket | None = None
    """Where the checkpoint is stored, too: the save succeeds in both places or fails."""

    @property
    def published(self) -> Path:
        """Where the checkpoint will be."""
        return self.checkpoints_dir / checkpoint_name(self.trainer.step)

    @property
    def temporary(self) -> Path:
        """Where it is written."""
        return self.checkpoints_dir / f"{TEMPORARY}{self.prefix}"

    @property
    def prefix(self) -> str:
        """The name that no other save of the run has."""
        return prefix_of(self.trainer.step, self.attempt, self.number)

    def manifest(self, files: Sequence[FileEntry], digest: str) -> CheckpointManifest:
        """The manifest of these files, and the digest of the tensors in them."""
        return CheckpointManifest(
            step=self.trainer.step,
            attempt=self.attempt,
            parent=self.parent,
            created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            fingerprints=dict(self.fingerprints),
            world_size=self.world_size,
            engine=self.engine,
            precision=self.precision,
            versions=dict(self.versions),
            files=tuple(sorted(files, key=lambda entry: entry.path)),
            digest=digest,
        )


def commit(
    plan: SavePlan, staged: StagedState, *, rank: int = 0, is_given_up: Callable[[], bool] = lambda: False
) -> CheckpointManifest | None:
    """Write what this rank stores; rank 0 then waits for the others' parts and publishes the checkpoint.

    A step that exists already (the run went back and came here again) is kept if the files are the same, byte for byte;
    otherwise it moves to quarantine as superseded. An older attempt than the one that wrote it is refused: it is a
    process that does not know that it was replaced.

    Args:
        plan: what is saved, alike on every rank.
        staged: the tensors. Frozen parameters are not saved: the fingerprints have their content hash
            (`checkpoint.digests.digest.identity`).
        rank: of this process, among `plan.world_size`.
        is_given_up: asked while rank 0 waits; another rank's part will not come then.

    Returns:
        The manifest of the published checkpoint, once it is durable; None on the other ranks, where returning means
        that their part is.

    Raises:
        StorageError: the disk could not store it, or the save was given up. Nothing is published, and no file of this
            save is used again: what is saved again is written once more, as a repeated fsync may succeed although the
            first one lost data.
        CheckpointError: rank 0: the checkpoint that exists is a later attempt's, or (`UnsupportedVersionError`) another
        version's.
    """
    try:
        if rank == 0:
            _sweep(plan)
        _make_folders(plan)
        receipt = _write_own(plan, staged, rank)
        with _in_the_store(plan, rank) as bucket:
            if bucket:
                bucket.put(plan.temporary, plan.prefix, (entry.path for entry in receipt.files))
        if rank:
            receipt.leave(plan.temporary)
            return None
        return _publish(plan, staged, collect(plan.temporary, receipt, plan.world_size, is_given_up))
    except (OSError, SaveAbandoned) as error:
        raise _not_saved(plan, rank, error, f"free space or fix {plan.checkpoints_dir}") from error
    except BaseException:
        if rank == 0:
            shutil.rmtree(plan.temporary, ignore_errors=True)
        raise


def _not_saved(plan: SavePlan, rank: int, error: OSError | SaveAbandoned, remedy: str) -> StorageError:
    """What is raised in place of an error; rank 0 removes what was written."""
    if rank == 0:
        shutil.rmtree(plan.temporary, ignore_errors=True)
    reason = "it was given up" if isinstance(error, SaveAbandoned) else error.strerror or str(error)
    said = f"step {plan.trainer.step} was not saved: {f'rank {rank}: ' if rank else ''}{reason}"
    return StorageError(plan.published, said, f"{remedy}; the checkpoints before it are untouched")


@contextmanager
def _in_the_store(plan: SavePlan, rank: int) -> Iterator[CheckpointBucket | None]:
    """Where the save is stored, too; an error in here is of that place."""
    try:
        yield plan.bucket
    except OSError as error:
        url = plan.bucket.url if plan.bucket else ""
        raise _not_saved(plan, rank, error, f"see that {url} answers and may be written") from error


def _sweep(plan: SavePlan) -> None:
    """Remove what another rank wrote, late, of a save of this attempt that had failed."""
    for folder in plan.checkpoints_dir.glob(f"{TEMPORARY}*-a{plan.attempt}-*"):
        if folder.name.rpartition("-")[2] < plan.temporary.name.rpartition("-")[2]:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folders(plan: SavePlan) -> None:
    """The folders of the save, which any rank may be the first to need."""
    if not plan.checkpoints_dir.is_dir():
        plan.checkpoints_dir.mkdir(folder_mode(plan.shared), parents=True, exist_ok=True)
        flush(plan.checkpoints_dir.parent)
    plan.temporary.mkdir(exist_ok=True)
    for part in PARTS:
        (plan.temporary / part).mkdir(exist_ok=True)


def _write_own(plan: SavePlan, staged: StagedState, rank: int) -> RankReceipt:
    """What this rank stores of both parts, on disk."""
    files, packed = [], {}
    for part in PARTS:
        places = {name: place for place, name in enumerate(sorted(staged.shapes[part]))}
        own = {name: piece for name, piece in sorted(staged.pieces[part].items()) if piece.start < piece.stop}
        if own:  # no moments before the first step; and there may be more ranks than tensors
            tensors = {name: piece.live for name, piece in own.items()}
            files.append(write_tensors(plan.temporary, f"{part}/{data_file(rank)}", tensors))
        rows = [
            (places[name], rank, piece.start, piece.stop, *sums(piece.live, piece.start).tolist())
            for name, piece in own.items()
        ]
        packed[part] = b64encode(np.array(rows, np.int64).tobytes()).decode()
    return RankReceipt(rank=rank, files=tuple(files), packed=packed)


def _publish(plan: SavePlan, staged: StagedState, receipts: Sequence[RankReceipt]) -> CheckpointManifest:
    """Complete the checkpoint that all ranks have written, and give it its name."""
    assert FROZEN in plan.fingerprints or not staged.has_frozen, "the manifest identifies what is frozen"
    extra: dict[str, Mapping[str, str] | Mapping[str, int]] = {"model": staged.aliases, "optimizer": staged.steps}
    files = [entry for receipt in receipts for entry in receipt.files]
    listed, digests = {entry.path: entry for entry in files}, dict[str, str]()
    for part in PARTS:
        stored = np.concatenate([receipt.pieces(part) for receipt in receipts])
        raw, of_part = index_bytes(part, staged.shapes[part], stored, extra[part])
        TensorIndex(part, raw, listed)  # nothing is published that no reader would take
        digests |= {f"{part}/{name}": digest for name, digest in of_part.items()}
        files.append(write_file(plan.temporary, f"{part}/{INDEX_FILE}", [raw]))
        flush(plan.temporary / part)
    shapes = {f"{part}/{name}": shape for part, of_part in staged.shapes.items() for name, shape in of_part.items()}
    files.append(write_file(plan.temporary, TRAINER_FILE, [plan.trainer.to_bytes()]))
    manifest = plan.manifest(files, identity(shapes, digests))
    require_exact_files(plan.temporary, manifest)
    _write_manifest(plan, manifest)
    is_new = move_aside(plan.published, manifest, moves=False)
    with _in_the_store(plan, 0) as bucket:
        if bucket:  # first: what is there alone is fetched, and what is here alone is lost with the machine
            bucket.put(plan.temporary, plan.prefix, (*(f"{part}/{INDEX_FILE}" for part in PARTS), TRAINER_FILE))
            bucket.publish(plan.prefix, manifest, plan.checkpoints_dir.parent)
    if is_new:
        move_aside(plan.published, manifest)  # now, so that a store that does not answer costs no checkpoint
        publish(plan.temporary, plan.published)
        return manifest
    shutil.rmtree(plan.temporary)
    flush(plan.checkpoints_dir)  # who wrote the existing one may have been killed before it did
    return verify(plan.published).manifest


def _write_manifest(plan: SavePlan, manifest: CheckpointManifest) -> None:
    """Write the manifest, which gets its name when complete, and make every name in the folder durable."""
    temporary = plan.temporary
    write_file(temporary, f"{MANIFEST_FILE}.tmp", [manifest.to_bytes()])
    os.rename(temporary / f"{MANIFEST_FILE}.tmp", temporary / MANIFEST_FILE)
    flush(temporary)


def move_aside(published: Path, manifest: CheckpointManifest, *, moves: bool = True) -> bool:
    """Free the name of a step that exists already, or only see whether that may be done.

    Args:
        published: the name.
        manifest: of the checkpoint that is to have it.
        moves: whether what is there goes into quarantine.

    Returns:
        Whether the name is free, or may be; False if the existing checkpoint is the same.

    Raises:
        CheckpointError: it is a later attempt's.
    """
    if not os.path.lexists(published):
        return True
    try:
        existing = verify(published).manifest
    except InvalidCheckpointError as error:
        if moves:
            quarantine(published, error.reason)
        return True
    if existing.attempt > manifest.attempt:
        raise CheckpointError(
            published,
            f"attempt {existing.attempt} wrote this step, and this is attempt {manifest.attempt}",
            "end this process: a later start of the run has taken its place",
        )
    if existing.files == manifest.files:
        return False
    if moves:
        quarantine(published, MADE_WAY)
    return True


def publish(temporary: Path, published: Path) -> None:
    """Give a checkpoint its name. One that may not last is taken back.

    The next try of the step would otherwise find a checkpoint of the same bytes, and take it for durable.
    """
    os.rename(temporary, published)
    try:
        flush(published.parent)
    except OSError:
        os.rename(published, temporary)
        raise
    supersede(published)
