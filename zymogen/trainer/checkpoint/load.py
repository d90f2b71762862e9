"""Find the newest checkpoint that is whole.

In: a directory of `step-*` checkpoints, any of which may be damaged. Out: a `VerifiedCheckpoint` one, or an error; None
only where there never was a checkpoint. What is read of its data files is compared with their hashes as it is read:
`check_data` reads all of them, `reader.TensorReader` what a process needs, `restore` what all ranks of a run need.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from zymogen.console.safe_text import log
from zymogen.files.durable import flush
from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.files.blocks import PARTS, BlockHashes, BlockReader, FileEntry, read_small, retried
from zymogen.trainer.checkpoint.files.index import INDEX_FILE, TensorIndex
from zymogen.trainer.checkpoint.manifest import (
    MANIFEST_FILE,
    TRAINER_FILE,
    CheckpointManifest,
    TrainerState,
    form_of,
    step_of_name,
)

QUARANTINE = ".quarantine"
QUARANTINED = 1
"""Checkpoints that stay in quarantine once a later one is saved, beside one that made way."""
MADE_WAY = "made-way"
"""The reason of a checkpoint that is whole, and makes way for another one of its step, which has no name yet."""
SUPERSEDED = "superseded"
"""The reason once that one has its name."""
_ONE_FILE_SYSTEM = "let all ranks see one file system"
_MOST_GONE = 20
"""Checkpoints that may vanish while they are read; a run that makes them faster than that keeps too few."""
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})
"""Errors that say what is in a folder. Others come from the machine or the storage, and a good checkpoint must not be
quarantined for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint whose JSON matches its manifest; its data files are compared as they are read."""

    path: Path
    manifest: CheckpointManifest
    trainer: TrainerState
    index: Mapping[str, TensorIndex] = field(compare=False, repr=False)
    """Where the tensors of each part are; parsed once."""
    rejected: tuple[str, ...] = ()
    """One line for each newer checkpoint that did not verify."""
    tensors: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """Those that were read when it was verified, whole, by name."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, as PART/NAME."""
        return {f"{part}/{name}": shape for part, index in self.index.items() for name, shape in index.shapes.items()}

    @property
    def digests(self) -> dict[str, str]:
        """Digest of every stored tensor, likewise."""
        return {f"{part}/{name}": each for part, index in self.index.items() for name, each in index.digests.items()}


Check = Callable[[VerifiedCheckpoint], dict[str, Tensor] | None]
"""Reads the data files of a checkpoint, as far as they are needed; the tensors of it that are wanted."""


def folder_mode(shared: bool) -> int:
    """Permissions of the folder of all checkpoints, which the umask reduces; those in it have the umask's."""
    return 0o777 if shared else 0o700


def find(checkpoints_dir: Path) -> list[Path]:
    """Paths named like a checkpoint, newest step first; says nothing about what is in them.

    Raises:
        StorageError: the folder cannot be read.
    """
    if not checkpoints_dir.is_dir():
        return []
    with storage_errors(checkpoints_dir):
        steps = {path: step_of_name(path.name) for path in checkpoints_dir.iterdir()}
    named = [(step, path) for path, step in steps.items() if step is not None]
    return [path for _, path in sorted(named, reverse=True)]


def newest_step(checkpoints_dir: Path) -> int:
    """The step of the newest checkpoint by name; 0 without one."""
    return max((step_of_name(path.name) or 0 for path in find(checkpoints_dir)), default=0)


def newest_valid(checkpoints_dir: Path, writer: bool, check: Check | None = None) -> VerifiedCheckpoint | None:
    """The newest checkpoint of which everything that is read matches its manifest.

    Each one that does not is reported on stderr and in `rejected`, and with `writer` moved to
    `.quarantine/<name>-<reason>`. One that does, but was written by another version, ends the search. Where one
    vanishes while it is read, because the run trains and keeps a few, the search begins again.

    Args:
        checkpoints_dir: where they are.
        writer: whether this process is the one that may move them.
        check: reads the data files of one, as far as they are needed; `check_data` where it is not given.

    Returns:
        None where there is no checkpoint, nor one in quarantine.

    Raises:
        CheckpointError: there are checkpoints, or were, and none verifies.
        StorageError: one cannot be read for a reason that says nothing about its bytes.
        UnsupportedVersionError: the newest one that is whole is of another version; it stays where it is.
    """
    rejected: list[str] = []
    found, gone = find(checkpoints_dir), 0
    while found:
        path = found.pop(0)
        try:
            return replace(verify(path, check), rejected=tuple(rejected))
        except InvalidCheckpointError as error:
            if not writer and not os.path.lexists(path):
                if gone == _MOST_GONE:
                    raise removed(path) from error
                found, gone = find(checkpoints_dir), gone + 1  # a run that trains removed it, after a newer one
                rejected.clear()
                continue
            rejected.append(reject(path, error, writer=writer))
    past = checkpoints_dir / QUARANTINE
    quarantined = sorted(path.name for path in past.iterdir()) if past.is_dir() else []
    if rejected or quarantined:
        raise CheckpointError(
            checkpoints_dir,
            f"no checkpoint verifies (rejected now: {rejected}; in quarantine: {quarantined[:5]})",
            "restore one from a backup, or move the directory away to start over from step 0",
        )
    return None


def unreadable(checkpoint: VerifiedCheckpoint) -> None:
    """Read none of its data files: for who needs its JSON alone, or reads them later."""


def removed(path: Path) -> CheckpointError:
    """The error that a checkpoint vanished while it was read."""
    return CheckpointError(
        path,
        "the run, which trains, removed it while it was read",
        "raise run.keep_checkpoints, or try again when the run has ended",
    )


def reject(path: Path, error: InvalidCheckpointError, *, writer: bool) -> str:
    """Report a checkpoint that is damaged, and with `writer` move it to quarantine; the line that was printed."""
    line = f"{path.name}: {error}"
    if writer:
        line += f"; moved to {quarantine(path, error.reason)}"
    log(f"checkpoint rejected: {line}")
    return line


def verify(path: Path, check: Check | None = None) -> VerifiedCheckpoint:
    """Check a whole checkpoint: manifest, list of files, sizes, hashes, index, headers.

    Args:
        path: of the checkpoint.
        check: reads the data files, as far as they are needed; `check_data` where it is not given.

    Raises:
        InvalidCheckpointError: the first thing that is wrong, and `reason` in one word.
        UnsupportedVersionError: every byte is as it was written, in a form that this version does not know.
        StorageError: it could not be read, which says nothing about its bytes.
    """
    checkpoint = _open(path, lists=True)
    with storage_errors(path):
        return replace(checkpoint, tensors=(check or check_data)(checkpoint) or {})


def check_data(checkpoint: VerifiedCheckpoint) -> None:
    """Compare all data files with their hashes, and their headers with the indexes.

    Raises:
        InvalidCheckpointError: the first thing that is wrong.
    """
    reader = BlockReader(checkpoint.path)
    known = {entry.path: (index, file) for index in checkpoint.index.values() for file, entry in index.files.items()}
    for entry in checkpoint.manifest.files:
        if entry.path.endswith(".json"):
            continue
        for number in range(len(entry.sha256)):
            block = reader.read(entry, number)
            if entry.path in known:
                index, file = known[entry.path]
                index.require_header(file, number, block)


def open_checkpoint(path: Path, manifest_sha256: str) -> VerifiedCheckpoint:
    """A checkpoint that rank 0 found and chose, on this rank; its data files are not hashed.

    Raises:
        CheckpointError: this rank does not see the same.
    """
    try:
        checkpoint = _open(path, lists=False)
    except InvalidCheckpointError as error:  # rank 0 has just opened it
        raise CheckpointError(path, str(error), _ONE_FILE_SYSTEM) from error
    if (found := checkpoint.manifest.self_sha256) != manifest_sha256:
        reason = f"this rank reads manifest {found}, the writer chose {manifest_sha256}"
        raise CheckpointError(path, reason, _ONE_FILE_SYSTEM)
    return checkpoint


def quarantine(path: Path, reason: str) -> Path:
    """Move a checkpoint out of the way, for inspection."""
    folder = path.parent / QUARANTINE
    folder.mkdir(exist_ok=True)
    target = _unused(folder / f"{path.name}-{reason}")
    os.rename(path, target)
    flush(folder)
    flush(path.parent)
    return target


def supersede(published: Path) -> None:
    """What made way for a checkpoint, which has its name now, does not get it back, even where this one is damaged."""
    folder = published.parent / QUARANTINE
    with suppress(OSError):  # the checkpoint is saved in any case
        for path in sorted(folder.glob(f"{published.name}-{MADE_WAY}*")):
            os.rename(path, _unused(folder / f"{published.name}-{SUPERSEDED}"))


def _unused(path: Path) -> Path:
    """This path, or with a number after it."""
    name, count = path, 1
    while os.path.lexists(name):
        count += 1
        name = path.with_name(f"{path.name}-{count}")
    return name


def _open(path: Path, *, lists: bool) -> VerifiedCheckpoint:
    """A checkpoint all of whose JSON is right; with `lists`, its files and their sizes are those of the manifest."""
    with storage_errors(path):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise InvalidCheckpointError("link", f"{path.name} is no folder")
        manifest = CheckpointManifest.from_bytes(read_small(path / MANIFEST_FILE), path)
        if step_of_name(path.name) != manifest.step:
            raise InvalidCheckpointError("step", f"{path.name} holds step {manifest.step}")
        if lists:
            require_exact_files(path, manifest)
        entries = manifest.entries
        raw = {name: _json(path, name, entries) for name in (TRAINER_FILE, *(f"{part}/{INDEX_FILE}" for part in PARTS))}
        with form_of(path, manifest.versions):
            trainer = TrainerState.from_bytes(raw[TRAINER_FILE])
            index = {part: TensorIndex(part, raw[f"{part}/{INDEX_FILE}"], entries) for part in PARTS}
        if trainer.step != manifest.step:
            raise InvalidCheckpointError("step", f"trainer at {trainer.step}, name {path.name}")
    return VerifiedCheckpoint(path=path, manifest=manifest, trainer=trainer, index=index)


def _json(path: Path, name: str, entries: Mapping[str, FileEntry]) -> bytes:
    """The content of a file of JSON, which has the hashes of the manifest."""
    if name not in entries:
        raise InvalidCheckpointError("missing", f"{name} is not in the manifest")
    raw, hashes = read_small(path / name), BlockHashes()
    hashes.update(raw)
    if (found := hashes.hexdigests()) != entries[name].sha256:
        raise InvalidCheckpointError("hash", f"{name}: sha256 {found}, manifest says {entries[name].sha256}")
    return raw


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Context in which an error of the disk says whether the checkpoint is damaged, or this machine cannot read it."""
    try:
        yield
    except OSError as error:
        if error.errno in _MISSING:
            raise InvalidCheckpointError("missing", f"{path.name}: {error}") from error
        remedy = "nothing was moved; see that the storage answers and this user may read it, and start again"
        raise StorageError(path, f"cannot be read: {error}", remedy) from error


def require_exact_files(path: Path, manifest: CheckpointManifest) -> None:
    """Require exactly the listed regular files, of the listed sizes, and no links."""
    sizes = retried(lambda: sizes_of(path))
    sizes.pop(MANIFEST_FILE, None)
    listed = {entry.path: entry.size for entry in manifest.files}
    missing, extra = sorted(listed.keys() - sizes.keys()), sorted(sizes.keys() - listed.keys())
    if missing or extra:
        reason = "missing" if missing else "extra"
        raise InvalidCheckpointError(reason, f"files missing {missing[:5]}, not listed {extra[:5]}")
    for name, size in listed.items():
        if sizes[name] != size:
            raise InvalidCheckpointError("size", f"{name}: {sizes[name]} bytes, manifest says {size}")


def sizes_of(folder: Path) -> dict[str, int]:
    """Bytes of each file below a folder, by relative path.

    Raises:
        InvalidCheckpointError: there is something else than folders and regular files.
    """
    sizes, folders = dict[str, int](), [""]
    while folders:
        below = folders.pop()
        with os.scandir(folder / below) as entries:
            for entry in entries:
                relative = f"{below}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{relative}/")
                elif entry.is_file(follow_symlinks=False):
                    sizes[relative] = entry.stat(follow_symlinks=False).st_size
                else:
                    raise InvalidCheckpointError("link", f"{relative} is not a regular file")
    return sizes
