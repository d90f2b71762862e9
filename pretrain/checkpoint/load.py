"""Find the newest checkpoint that is whole, and put it into a model and optimizer.

In: a directory of `step-*` checkpoints, any of which may be damaged. Out: a `Verified` one whose every byte matched its
manifest, or an error; None only where there never was a checkpoint. One process calls `newest_valid`, many ranks deal
its work (`checkpoint.blocks.shares`); then all ranks call `restore`, which hashes once more what it reads.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from data.durable import flush
from data.safe_text import tell
from pretrain.checkpoint.blocks.hashes import HashedBlocks, num_blocks
from pretrain.checkpoint.blocks.shares import Share, share_of
from pretrain.checkpoint.canonical import InvalidCheckpoint
from pretrain.checkpoint.digests.loaded import require_same_digest
from pretrain.checkpoint.manifest import (
    ENTRIES,
    FORM,
    FROZEN,
    MANIFEST_FILE,
    TRAINER_FILE,
    Manifest,
    OtherVersion,
    TrainerState,
    UnknownForm,
    step_of_name,
)
from pretrain.checkpoint.tensors import PARTS, TensorReader
from pretrain.engine.named_state import NamedState
from pretrain.engine.ranks import Ranks
from pretrain.run.errors import CheckpointError, StorageError

QUARANTINE = ".quarantine"
MADE_WAY = "made-way"
"""The reason of a checkpoint that is whole, and makes way for another one of its step, which has no name yet."""
SUPERSEDED = "superseded"
"""The reason once that one has its name."""
_MOST_GONE = 20
"""Checkpoints that may vanish while they are read; a run that makes them faster than that keeps too few."""
# Errors of a damaged disk or directory; others (rights, too many open files) come from the machine, and a good
# checkpoint must not be quarantined for them.
_DAMAGE = frozenset({errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A checkpoint that matched its manifest."""

    path: Path
    manifest: Manifest
    trainer: TrainerState
    rejected: tuple[str, ...] = ()
    """One line for each newer checkpoint that did not verify."""

    @property
    def manifest_sha256(self) -> str:
        """Identity of the checkpoint: broadcast it with the path; parent of the next commit."""
        return self.manifest.self_sha256

    def tensors(self, part: str) -> TensorReader:
        """What reads the tensors of one of `PARTS`."""
        return TensorReader(self.path, part, self.manifest.entries)


def find(checkpoints_dir: Path) -> list[Path]:
    """Paths named like a checkpoint, newest step first; says nothing about what is in them."""
    if not checkpoints_dir.is_dir():
        return []
    steps = {path: step_of_name(path.name) for path in checkpoints_dir.iterdir()}
    named = [(step, path) for path, step in steps.items() if step is not None]
    return [path for _, path in sorted(named, reverse=True)]


def newest_step(checkpoints_dir: Path) -> int:
    """The step of the newest checkpoint by name; 0 without one."""
    return max((step_of_name(path.name) or 0 for path in find(checkpoints_dir)), default=0)


def newest_valid(
    checkpoints_dir: Path, writer: bool, check: Callable[[Verified], None] | None = None
) -> Verified | None:
    """The newest checkpoint whose every byte matches its manifest.

    Each one that does not is reported on stderr and in `rejected`, and with `writer` moved to
    `.quarantine/<name>-<reason>`. One that does, but was written by another version, ends the search. Where one
    vanishes while it is read, because the run trains and keeps a few, the search begins again.

    Args:
        checkpoints_dir: where they are.
        writer: whether this process is the one that may move them.
        check: compares the data files of one with their hashes; `check_data` where it is not given.

    Returns:
        None where there is no checkpoint, nor one in quarantine.

    Raises:
        CheckpointError: there are checkpoints, or were, and none verifies.
        StorageError: one cannot be read for a reason that says nothing about its bytes.
        OtherVersion: the newest one that is whole is of another version; it stays where it is.
    """
    rejected: list[str] = []
    found, gone = find(checkpoints_dir), 0
    while found:
        path = found.pop(0)
        try:
            return replace(verify(path, check), rejected=tuple(rejected))
        except InvalidCheckpoint as error:
            if not writer and not os.path.lexists(path) and gone < _MOST_GONE:
                found, gone = find(checkpoints_dir), gone + 1  # a run that trains removed it, after a newer one
                rejected.clear()
                continue
            line = f"{path.name}: {error}"
            if writer:
                line += f"; moved to {quarantine(path, error.reason)}"
            rejected.append(line)
            tell(f"checkpoint rejected: {line}")
    past = checkpoints_dir / QUARANTINE
    quarantined = sorted(path.name for path in past.iterdir()) if past.is_dir() else []
    if rejected or quarantined:
        raise CheckpointError(
            checkpoints_dir,
            f"no checkpoint verifies (rejected now: {rejected}; in quarantine: {quarantined[:5]})",
            "restore one from a backup, or move the directory away to start over from step 0",
        )
    return None


def verify(path: Path, check: Callable[[Verified], None] | None = None) -> Verified:
    """Check a whole checkpoint: manifest, list of files, sizes, hashes, index, headers.

    Args:
        path: of the checkpoint.
        check: compares the data files with their hashes; `check_data` where it is not given.

    Raises:
        InvalidCheckpoint: the first thing that is wrong, and `reason` in one word.
        OtherVersion: every byte is as it was written, in a form that this version does not know.
        StorageError: it could not be read, for lack of rights or file handles.
    """
    checkpoint = _open(path)
    (check or check_data)(checkpoint)
    return checkpoint


def check_data(
    checkpoint: Verified, shares: Iterable[Share] | None = None, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Compare the data files with their hashes, and their headers with the indexes.

    Args:
        checkpoint: whose.
        shares: the blocks to compare; None: all.
        is_stopped: asked before each; what is left is not compared then.

    Raises:
        InvalidCheckpoint: the first thing that is wrong.
        OtherVersion, StorageError: as of `verify`.
    """
    path = checkpoint.path
    with _named_errors(path), _form_of(path, checkpoint.manifest):
        readers = {part: checkpoint.tensors(part) for part in PARTS}
        for file, first, last in share_of(checkpoint.manifest.files) if shares is None else shares:
            if is_stopped():
                return
            part, _, name = file.path.partition("/")
            if part in readers:
                readers[part].check(name, first, last)
            else:
                HashedBlocks(path / file.path, file.size, file.hashes).check(first, last)


def open_checkpoint(path: Path, manifest_sha256: str) -> Verified:
    """A checkpoint that another rank found and chose; its data files are not hashed.

    Raises:
        InvalidCheckpoint: what this rank sees is not what was chosen.
    """
    checkpoint = _open(path)
    if checkpoint.manifest_sha256 != manifest_sha256:
        raise InvalidCheckpoint(
            "manifest",
            f"{path}: this rank reads manifest {checkpoint.manifest_sha256}, the writer chose "
            f"{manifest_sha256}; all ranks must see one file system",
        )
    return checkpoint


def quarantine(path: Path, reason: str) -> Path:
    """Move a checkpoint out of the way, for inspection; those who may read it may read the quarantine, too."""
    folder = path.parent / QUARANTINE
    found = path.lstat().st_mode
    folder.mkdir(mode=stat.S_IMODE(found) | 0o700 if stat.S_ISDIR(found) else 0o700, exist_ok=True)
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


def restore(
    checkpoint: Verified,
    state: NamedState,
    frozen: str | None = None,
    known: Set[str] = ENTRIES,
    ranks: Ranks | None = None,
) -> TrainerState:
    """Load parameters, moments and steps, each rank its own part; every check comes before the first write.

    A parameter without moments in a checkpoint at step 0 gets zeros, which is where it stood.

    Args:
        checkpoint: what is read.
        state: what it is read into. Its frozen parameters are in no checkpoint, and stay as they are.
        frozen: their content hash; None where there are none.
        known: names of entries that this run can continue from.
        ranks: that hold the state together: what they have loaded is compared with the digests of what was saved.

    Raises:
        ValueError: names, shapes, ties, moments or frozen parameters of the checkpoint are not those of `state`.
        OtherVersion: the run has state that this version does not know, and would silently continue without.
        StorageError: what was verified is read differently now.
        CheckpointError: what was read is not what was saved.
    """
    unknown = sorted(checkpoint.trainer.entries.keys() - known)
    if unknown:
        what = f"{TRAINER_FILE} has the entries {unknown[:5]}, known are {sorted(known)}"
        raise OtherVersion(checkpoint.path, checkpoint.manifest.versions, what)
    model, optimizer = map(checkpoint.tensors, PARTS)
    here = f"{checkpoint.path}: "
    shapes = {name: state.shape(name) for name in state.names}
    has_frozen = bool(state.frozen) or FROZEN in checkpoint.manifest.fingerprints
    remedy = "use the recipe of that run" + (", and freeze what it froze" if has_frozen else "")
    _require_same_names(here + "parameters" + " that are trained" * has_frozen, set(model.shapes), set(shapes), remedy)
    _require_same_names(here + "optimizer steps", set(optimizer.steps), set(shapes))
    _require_same_shapes(here, model.shapes, shapes)
    require_same_frozen(checkpoint, frozen)
    if model.aliases != dict(state.aliases):
        raise ValueError(
            f"{here}tied weights differ: the checkpoint has {model.aliases}, the model "
            f"{dict(state.aliases)}; tie the model as the run did"
        )
    state.begin_load()
    moments = {f"{key}/{name}": name for name in shapes for key in state.moments(name)}
    stepped = {moment.partition("/")[2] for moment in optimizer.shapes}
    fresh = {m for m, name in moments.items() if not optimizer.steps[name] and name not in stepped}
    _require_same_names(here + "optimizer moments", set(optimizer.shapes), set(moments) - fresh)
    expected = {moment: shapes[name] for moment, name in moments.items()}
    _require_same_shapes(here, optimizer.shapes, expected)
    try:
        for name in shapes:
            state.scatter(name, "param", partial(model.read_span, name))
            state.set_step(name, optimizer.steps[name])
        for moment, name in moments.items():
            read = _zeros if moment in fresh else partial(optimizer.read_span, moment)
            state.scatter(name, moment.partition("/")[0], read)
    except InvalidCheckpoint as error:
        remedy = "start again: if it is damaged it is put aside, and the one before it is used"
        raise StorageError(checkpoint.path, f"it has changed since it was verified: {error}", remedy) from error
    state.end_load()
    if ranks and checkpoint.manifest.digest:
        readers = zip(PARTS, (model, optimizer), strict=True)
        saved = {f"{part}/{name}": digest for part, reader in readers for name, digest in reader.digests.items()}
        require_same_digest(checkpoint.path, checkpoint.manifest.digest, saved, state, ranks)
    return checkpoint.trainer


def _zeros(start: int, stop: int) -> Tensor:
    return torch.zeros(stop - start)


def _open(path: Path) -> Verified:
    """A checkpoint all of whose JSON is right; of its data files, the sizes are."""
    with _named_errors(path):
        if path.is_symlink():
            raise InvalidCheckpoint("link", f"{path.name} is a link")
        try:
            manifest = Manifest.from_bytes((path / MANIFEST_FILE).read_bytes())
        except UnknownForm as error:
            raise OtherVersion(path, error.writer, str(error)) from error
        if step_of_name(path.name) != manifest.step:
            raise InvalidCheckpoint("step", f"{path.name} holds step {manifest.step}")
        require_exact_files(path, manifest)
        for entry in manifest.files:
            if entry.path.endswith(".json"):
                HashedBlocks(path / entry.path, entry.size, entry.hashes).check(0, num_blocks(entry.size))
        with _form_of(path, manifest):
            trainer = TrainerState.from_bytes((path / TRAINER_FILE).read_bytes())
            checkpoint = Verified(path=path, manifest=manifest, trainer=trainer)
            for part in PARTS:
                checkpoint.tensors(part)
        if trainer.step != manifest.step:
            raise InvalidCheckpoint("step", f"trainer at {trainer.step}, name {path.name}")
    return checkpoint


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Context in which an error of the disk says whether the checkpoint is damaged, or this machine cannot read it."""
    try:
        yield
    except OSError as error:
        if error.errno in _DAMAGE:
            raise InvalidCheckpoint("unreadable", f"{path.name}: {error}") from error
        remedy = "make it readable for this user and start again"
        raise StorageError(path, f"cannot be read: {error}", remedy) from error


@contextmanager
def _form_of(path: Path, manifest: Manifest) -> Iterator[None]:
    """Context in which hashes are right: content of another form was written like that, by another version."""
    try:
        yield
    except InvalidCheckpoint as error:
        if error.reason not in FORM:
            raise
        raise OtherVersion(path, manifest.versions, str(error)) from error


def require_exact_files(path: Path, manifest: Manifest) -> None:
    """Require exactly the listed regular files, of the listed sizes, and no links."""
    sizes: dict[str, int] = {}
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            entry = Path(folder, name)
            relative = entry.relative_to(path).as_posix()
            if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                raise InvalidCheckpoint("link", f"{relative} is not a regular file")
        for name in files:
            entry = Path(folder, name)
            sizes[entry.relative_to(path).as_posix()] = entry.stat().st_size
    sizes.pop(MANIFEST_FILE, None)
    listed = {entry.path: entry.size for entry in manifest.files}
    missing, extra = sorted(listed.keys() - sizes.keys()), sorted(sizes.keys() - listed.keys())
    if missing or extra:
        reason = "missing" if missing else "extra"
        raise InvalidCheckpoint(reason, f"files missing {missing[:5]}, not listed {extra[:5]}")
    for name, size in listed.items():
        if sizes[name] != size:
            raise InvalidCheckpoint("size", f"{name}: {sizes[name]} bytes, manifest says {size}")


def require_same_frozen(checkpoint: Verified, found: str | None) -> None:
    """Raise ValueError if `found` is not the content hash of the frozen parameters that it was trained on."""
    stored = checkpoint.manifest.fingerprints.get(FROZEN)
    if stored != found:
        raise ValueError(
            f"{checkpoint.path} was trained on other frozen parameters, which it does not hold: their content hash was "
            f"{stored}, and is now {found}; put back the weights that the run began with, or choose another "
            "run.directory to train on these"
        )


def _require_same_names(
    what: str, stored: set[str], wanted: set[str], remedy: str = "use the recipe of that run"
) -> None:
    missing, unknown = sorted(wanted - stored), sorted(stored - wanted)
    if missing or unknown:
        raise ValueError(
            f"{what} differ: {len(missing)} missing in the checkpoint {missing[:5]}, "
            f"{len(unknown)} unknown to this run {unknown[:5]}; {remedy}"
        )


def _require_same_shapes(where: str, stored: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> None:
    differing = [n for n in sorted(stored) if stored[n] != wanted[n]]
    if differing:
        lines = [f"{n}: checkpoint {stored[n]}, model {wanted[n]}" for n in differing[:5]]
        raise ValueError(f"{where}{len(differing)} shapes differ: {'; '.join(lines)}")
