"""Write a checkpoint so that it exists only when it is whole.

Everything goes into `.tmp-step-*` beside the others: data, index, trainer state, each fsynced; the
manifest with their hashes last; then one rename to `step-000012000` publishes it. A crash at any
point before the rename leaves a directory that no reader looks at and `retention.sweep` removes.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from torch import Tensor

from data.durable import flush
from pretrain.checkpoint.canonical import InvalidCheckpoint, canonical
from pretrain.checkpoint.load import quarantine, verify
from pretrain.checkpoint.manifest import (
    FROZEN,
    MANIFEST_FILE,
    TRAINER_FILE,
    FileEntry,
    Manifest,
    Topology,
    TrainerState,
    checkpoint_name,
)
from pretrain.checkpoint.tensors import (
    DATA_FILE,
    INDEX_FILE,
    PRIVATE,
    SHARED,
    HashedFile,
    Modes,
    SafetensorsWriter,
    index_of_whole_tensors,
    write_bytes,
)
from pretrain.engine.named_state import NamedState
from pretrain.run.errors import CheckpointError, StorageError

TEMPORARY = ".tmp-"
Source = tuple[str, str]  # parameter name, and "param" or the key of a moment


def commit(
    checkpoints_dir: Path,
    *,
    state: NamedState,
    trainer: TrainerState,
    attempt: int,
    parent: str | None,
    fingerprints: Mapping[str, str],
    topology: Topology,
    versions: Mapping[str, str],
    is_writer: bool,
    shared: bool = False,
) -> Path:
    """Save the state at an optimizer step. All ranks call it; only the writer, the first, touches the disk.

    Frozen parameters are not saved: `fingerprints` has their content hash (`checkpoint.frozen`).

    A step that exists already (the run went back and came here again) is kept if the files are the
    same, byte for byte; otherwise it moves to quarantine as superseded. An older attempt than the
    one that wrote it is refused: it is a process that does not know that it was replaced.
    Only its user can read what is written or, if `shared`, those whom the umask admits.

    Returns:
        The path of the checkpoint. Only on the writer does returning mean that it is durable.

    Raises:
        ValueError: a field is not what the manifest allows; on all ranks, before any collective.
        StorageError: the disk could not store it; on the writer, after all ranks have left their
            collectives. No temporary file is left, and nothing is published: what is saved again is
            written once more, as a repeated fsync may succeed although the first one lost data.
        CheckpointError: the checkpoint that exists is a later attempt's, or (`OtherVersion`) another
            version's; likewise on the writer.
    """
    assert FROZEN in fingerprints or not state.frozen, "the manifest identifies what is frozen"
    draft = Manifest(
        step=trainer.step,
        attempt=attempt,
        parent=parent,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        fingerprints=dict(fingerprints),
        topology=topology,
        versions=dict(versions),
        files=(),
    )
    sources: dict[str, dict[str, Source]] = {
        "model": {name: (name, "param") for name in state.names},
        "optimizer": {f"{key}/{name}": (name, key) for name in state.names for key in state.moments(name)},
    }
    gathered = _gather_each(state, [s for part in sources.values() for s in part.values()])
    published = checkpoints_dir / checkpoint_name(trainer.step)
    if not is_writer:
        _finish(gathered)
        return published
    modes = SHARED if shared else PRIVATE
    nonce = secrets.token_hex(4)
    temporary = checkpoints_dir / f"{TEMPORARY}{published.name}-a{attempt}-{nonce}"
    try:
        if not checkpoints_dir.is_dir():
            checkpoints_dir.mkdir(parents=True)
            flush(checkpoints_dir.parent)
        temporary.mkdir(mode=modes.folder)
        files = _write_tensors(temporary, state, sources, gathered, modes)
        files.append(write_bytes(temporary, TRAINER_FILE, trainer.to_bytes(), modes))
        manifest = _write_manifest(temporary, draft, files, modes)
        if _make_way(published, manifest):
            _publish(temporary, published)
        else:
            shutil.rmtree(temporary)
            flush(checkpoints_dir)  # who wrote the existing one may have been killed before it did
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _finish(gathered)
        raise StorageError(
            published,
            f"step {trainer.step} was not saved: {error.strerror or error}",
            f"free space or fix {checkpoints_dir}; the checkpoints before it are untouched",
        ) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return published


def _gather_each(state: NamedState, sources: list[Source]) -> Iterator[Tensor | None]:
    """Whole tensors, one at a time: beyond training, this needs memory for one parameter, on other ranks none."""
    for name, key in sources:
        yield state.gather(name, key)


def _finish(gathered: Iterator[Tensor | None]) -> None:
    """Take part in the remaining collectives; otherwise the other ranks would wait in them."""
    for _ in gathered:
        pass


def _write_tensors(
    temporary: Path,
    state: NamedState,
    sources: Mapping[str, Mapping[str, Source]],
    gathered: Iterator[Tensor | None],
    modes: Modes,
) -> list[FileEntry]:
    """Data and index of both parts."""
    extra: dict[str, dict[str, object]] = {
        "model": {"aliases": dict(state.aliases)},
        "optimizer": {"steps": {name: state.step_of(name) for name in state.names}},
    }
    files = []
    for part, tensors in sources.items():
        (temporary / part).mkdir(mode=modes.folder)
        shapes = {key: state.shape(name) for key, (name, _) in tensors.items()}
        if tensors:  # no moments before the first step
            files.append(_write_data(temporary, f"{part}/{DATA_FILE}", shapes, gathered, modes))
        index = {"tensors": index_of_whole_tensors(shapes), **extra[part]}
        files.append(write_bytes(temporary, f"{part}/{INDEX_FILE}", canonical(index), modes))
        flush(temporary / part)
    return files


def _write_data(
    temporary: Path, path: str, shapes: Mapping[str, tuple[int, ...]], gathered: Iterator[Tensor | None], modes: Modes
) -> FileEntry:
    with HashedFile(temporary, path, modes) as file:
        writer = SafetensorsWriter(file, shapes)
        for key in shapes:
            tensor = next(gathered)
            assert tensor is not None, "the writer is the first rank"
            writer.append(key, tensor)
            del tensor  # before the next one is gathered
        return writer.close()


def _write_manifest(temporary: Path, draft: Manifest, files: list[FileEntry], modes: Modes) -> Manifest:
    """Write the manifest, which gets its name when complete, and make every name in the directory durable."""
    manifest = replace(draft, files=tuple(sorted(files, key=lambda entry: entry.path)))
    write_bytes(temporary, f"{MANIFEST_FILE}.tmp", manifest.to_bytes(), modes)
    os.rename(temporary / f"{MANIFEST_FILE}.tmp", temporary / MANIFEST_FILE)
    flush(temporary)
    return manifest


def _make_way(published: Path, manifest: Manifest) -> bool:
    """Free the name of a step that exists already; False if the existing checkpoint is the same."""
    if not os.path.lexists(published):
        return True
    try:
        existing = verify(published).manifest
    except InvalidCheckpoint as error:
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
    quarantine(published, "superseded")
    return True


def _publish(temporary: Path, published: Path) -> None:
    """Give a checkpoint its name. One that may not last is taken back.

    The next try of the step would otherwise find a checkpoint of the same bytes, and take it for durable.
    """
    os.rename(temporary, published)
    try:
        flush(published.parent)
    except OSError:
        os.rename(published, temporary)
        raise
