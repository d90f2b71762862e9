"""The folder of a bundle, written whole or not at all, and opened with every byte checked.

In: a manifest, tensors, the split; or a folder, which nobody vouches for. Out: a folder; or `Bundle`. Kept:
bundle.json, model.safetensors, split.csv, README.md with its pictures and, for a model of mutations, wild_type.fasta.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from data.disk_error import refusal
from data.durable import workspace, write_whole, written_beside
from data.recipe.json_file import as_json
from data.safe_text import tell
from finetune.bundle.card import CARD, bundle_card, is_sealed, with_pictures
from finetune.bundle.manifest import FILES, FORMAT, MANIFEST, SPLIT, WEIGHTS, WILD_TYPES, Manifest, parsed
from finetune.results.results import Results
from finetune.splits import split_file
from finetune.splits.parts import Parts

_REMEDY = "get the right to write there"


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle."""

    folder: Path
    manifest: Manifest
    tensors: Mapping[str, Tensor]
    """What was trained: names of parameters of the model -> float32 on the host."""

    @property
    def split(self) -> Path:
        """CSV file of the part, fold and group of each protein."""
        return self.folder / SPLIT

    @property
    def wild_types(self) -> Path:
        """FASTA file of the proteins that the training table's mutations changed."""
        return self.folder / WILD_TYPES


def write_bundle(
    folder: Path,
    manifest: Manifest,
    tensors: Mapping[str, Tensor],
    ids: Sequence[str],
    parts: Parts,
    wild_types: Mapping[str, str] | None = None,
) -> None:
    """Write a bundle beside an older one, then replace that.

    A folder of that name that is no bundle, or a bundle in which anything was changed or added, is not removed: it is
    called ``NAME-1``, or the next number that is free. One that holds the same already stays, with its evaluation: that
    of a finished run which is started again.

    Args:
        folder: to be made.
        manifest: whose `files` are filled in here.
        tensors: what was trained.
        ids: (N,) id of each record.
        parts: of the records.
        wild_types: name -> letters, for a model of mutations.

    Raises:
        ValueError: it cannot be written.
    """
    with workspace(folder, _REMEDY) as work, refusal(folder, _REMEDY):
        building = work / "new"
        building.mkdir()
        split_file.write(building / SPLIT, ids, parts)
        save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, building / WEIGHTS)
        if wild_types is not None:
            text = "".join(f">{name}\n{letters}\n" for name, letters in wild_types.items())
            (building / WILD_TYPES).write_text(text, encoding="utf-8")
        hashes = {path.name: _hash(path) for path in sorted(building.iterdir())}
        whole = replace(manifest, files=hashes)
        if _holds(folder, whole):
            return
        whole, pictures = with_pictures(whole)
        for name, content in pictures.items():
            (building / name).write_text(content, encoding="utf-8")
        (building / MANIFEST).write_text(as_json(whole), encoding="utf-8")
        (building / CARD).write_text(bundle_card(whole), encoding="utf-8")
        mode = (building / MANIFEST).stat().st_mode & 0o777
        for path in building.iterdir():
            path.chmod(mode)  # safetensors makes its file private, whatever the umask
            with path.open("rb") as file:
                os.fsync(file.fileno())
        before = _make_way(folder, work / "old")
        try:
            building.rename(folder)
        except BaseException:
            if before is not None:
                before.rename(folder)
            raise


def with_evaluation(folder: Path, evaluation: Results | None) -> None:
    """Add the results of a run to its bundle: scores of the tested part, and the calibration.

    Raises:
        ValueError: it is no bundle, or cannot be written.
    """
    before = _manifest(folder)
    with refusal(folder / MANIFEST, _REMEDY):
        for name, expected in before.pictures.items():
            if (old := folder / Path(name).name).is_file() and _hash(old) == expected:
                old.unlink()  # first, so that none ever lies beside numbers that are not its own
        taken = [path.name for path in folder.iterdir()]
        manifest, pictures = with_pictures(replace(before, evaluation=evaluation), taken)
        write_whole(folder / MANIFEST, as_json(manifest))
        for name, content in pictures.items():
            write_whole(folder / name, content)
        if not os.path.lexists(folder / CARD) or is_sealed(folder / CARD):  # one that somebody wrote stays
            write_whole(folder / CARD, bundle_card(manifest))


def open_folder(folder: Path) -> Bundle:
    """The bundle in a folder.

    Raises:
        ValueError: it is none, or lacks a file, or one is not as it was written.
    """
    manifest = _manifest(folder)
    if {WEIGHTS, SPLIT} - manifest.files.keys() or manifest.files.keys() - {*FILES}:
        raise ValueError(f"{folder / MANIFEST} is damaged: it lists the files {sorted(manifest.files)}")
    contents = {}
    for name, expected in manifest.files.items():
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise ValueError(f"{folder / name}: {error.strerror}; copy the whole bundle") from None
        if (found := hashlib.sha256(contents[name]).hexdigest()) != expected:
            raise ValueError(
                f"{folder / name} is not as it was written: its SHA-256 is {found}, {MANIFEST} says {expected}; copy "
                "the bundle again"
            )
    try:
        tensors = load(contents[WEIGHTS])
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is no safetensors file: {error}; copy the bundle again") from None
    if wrong := [name for name, tensor in tensors.items() if tensor.dtype != torch.float32]:
        raise ValueError(f"{folder / WEIGHTS}: {wrong[0]!r} is {tensors[wrong[0]].dtype}; a bundle holds float32")
    return Bundle(folder, manifest, tensors)


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{folder} is no bundle: {MANIFEST}: {error.strerror}; name the folder bundle/ of a run"
        ) from None
    return parsed(content, str(path))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _holds(folder: Path, manifest: Manifest) -> bool:
    """Whether a folder is a bundle as it was written, with this manifest or one that differs in its evaluation."""
    if not _is_as_written(folder):
        return False
    try:
        here = _manifest(folder)
    except ValueError:
        return False
    evaluated = replace(manifest, evaluation=here.evaluation, pictures=here.pictures)
    return as_json(here) == as_json(evaluated)


def _make_way(folder: Path, before: Path) -> Path | None:
    """Give what has the name `folder` another name: `before`, to be removed, if it is a bundle as it was written."""
    if not os.path.lexists(folder):
        return None
    other = before
    if not _is_as_written(folder):
        number = next(n for n in itertools.count(1) if not os.path.lexists(folder.with_name(f"{folder.name}-{n}")))
        other = folder.with_name(f"{folder.name}-{number}")
        tell(f"{folder} is not as it was written; it is kept as {other}")
    folder.rename(other)
    return other


def _is_as_written(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())
        files = listed["files"]
        pictures = listed["pictures"]
        # A kill of `with_evaluation` may have left what it wrote beside one of its files.
        left = {written_beside(folder / name).name for name in (MANIFEST, CARD, *pictures)}
        here = {path.name for path in folder.iterdir()} - left
        if listed["format"] != FORMAT or here - {CARD, *pictures} != {MANIFEST, *files}:
            return False
        if any(_hash(folder / name) != pictures[name] for name in here & pictures.keys()):
            return False
        if CARD in here and not is_sealed(folder / CARD):
            return False
        return all((folder / name).is_file() and _hash(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
