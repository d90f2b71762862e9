"""The folder of a bundle, written whole or not at all, and opened with every byte checked.

In: a manifest, tensors, the split; or a folder, which nobody vouches for. Out: a folder; or `Bundle`. Kept:
bundle.json, model.safetensors, split.csv, README.md with its pictures and, for a model of mutations, wild_type.fasta.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from finetune.bundle.card import CARD, bundle_card, write_pictures
from finetune.bundle.manifest import FILES, MANIFEST, SPLIT, WEIGHTS, WILD_TYPES, BundleManifest
from finetune.results.results import Ensemble, Results
from finetune.splits import split_file
from finetune.splits.parts import SplitParts
from pretrain.export.checksums import is_unchanged, replace_dir, sha256_of
from zymogen.files.durable import workspace, write_error
from zymogen.settings.json_file import as_json, read_bytes

_REMEDY = "get the right to write there"


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle."""

    folder: Path
    manifest: BundleManifest
    tensors: Mapping[str, Tensor]
    """What was trained: names of parameters of the model -> float32 on the host."""


def write_bundle(
    folder: Path,
    manifest: BundleManifest,
    tensors: Mapping[str, Tensor],
    ids: Sequence[str],
    parts: SplitParts,
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
    with workspace(folder, _REMEDY) as work, write_error(folder, _REMEDY):
        building = work / "new"
        building.mkdir()
        split_file.write(building / SPLIT, ids, parts)
        save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, building / WEIGHTS)
        if wild_types is not None:
            text = "".join(f">{name}\n{letters}\n" for name, letters in wild_types.items())
            (building / WILD_TYPES).write_text(text, encoding="utf-8")
        hashes = {path.name: sha256_of(path) for path in sorted(building.iterdir())}
        whole = replace(manifest, files=hashes)
        if _holds(folder, whole):
            return
        _put(building, folder, whole, work / "old")


def with_evaluation(folder: Path, evaluation: Results | None, ensemble: Ensemble | None = None) -> None:
    """Add to a bundle the results of its model, scores of the tested part and calibration, and those of all models.

    A bundle that has them stays; of another one a copy with them is written, as by `write_bundle`.

    Raises:
        ValueError: it is no bundle, or cannot be written.
    """
    before = BundleManifest.read(folder)
    manifest = replace(before, evaluation=evaluation, ensemble=ensemble)
    if as_json(manifest) == as_json(before):
        return
    with workspace(folder, _REMEDY) as work, write_error(folder, _REMEDY):
        building = work / "new"
        building.mkdir()
        for name in manifest.files:
            shutil.copyfile(folder / name, building / name)
        _put(building, folder, manifest, work / "old")


def _put(building: Path, folder: Path, manifest: BundleManifest, before: Path) -> None:
    """Add the manifest and the card to the files of a bundle, and give it its name."""
    (building / MANIFEST).write_text(as_json(manifest), encoding="utf-8")
    card = bundle_card(manifest, write_pictures(manifest, building))
    (building / CARD).write_text(card, encoding="utf-8")
    replace_dir(building, folder, before)


def open_folder(folder: Path) -> Bundle:
    """The bundle in a folder.

    Raises:
        ValueError: it is none, or lacks a file, or one is not as it was written.
    """
    manifest = BundleManifest.read(folder)
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


def _holds(folder: Path, manifest: BundleManifest) -> bool:
    """Whether a folder is a bundle as it was written, with this manifest or one that differs in its evaluation."""
    here = read_bytes(BundleManifest, folder / MANIFEST) if is_unchanged(folder) else None
    return here is not None and as_json(here) == as_json(
        replace(manifest, evaluation=here.evaluation, ensemble=here.ensemble)
    )
