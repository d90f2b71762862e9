"""A folder to push: whether it is a finished model, and its files.

In: a folder, which nobody vouches for. Out: the path of each file, or an error that names what is missing. Kept:
nothing.
"""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pretrain.export.checksums import CHECKSUMS, sha256_of
from zymogen.settings.extension import is_external
from zymogen.settings.section import flat

_LEFT_OUT = frozenset({".git", ".cache"})
"""Folders that a hub does not take; a download leaves the second one."""
_BUNDLE, _ADAPTER, _INDEX, _CONFIG = "bundle.json", "adapter_config.json", "model.safetensors.index.json", "config.json"


def finished_files(folder: Path) -> dict[str, Path]:
    """The files of a finished model's folder: name in a repository, with "/" -> path.

    Finished is: weights and configuration as transformers reads them, with every shard; an adapter of peft's; or a
    bundle of `finetune` in which every file is as it was written.

    Raises:
        ValueError: the folder is none of these, or something in it is no regular file.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name one with a finished model, or a run directory")
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not _LEFT_OUT.isdisjoint(name.split("/")):
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"{path} is no regular file; push a copy without links, as cp -rL makes it")
        if path.is_file() and name != CHECKSUMS:
            files[name] = path
    _require_finished(folder, files)
    return files


def _require_finished(folder: Path, files: dict[str, Path]) -> None:
    mark = next((name for name in (_BUNDLE, _ADAPTER, _CONFIG) if name in files), None)
    if mark is None:
        raise ValueError(
            f"{folder} holds no finished model: it has none of {_BUNDLE}, {_ADAPTER}, {_CONFIG}; name the folder "
            "export/ or bundle/ of a run, or an adapter's"
        )
    needed = {"adapter_model.safetensors" if mark == _ADAPTER else "model.safetensors"}
    hashes: dict[str, str] = {}
    if mark == _BUNDLE:
        hashes = _entries(files[mark], "files")
        of_classes = flat(json.loads(files[mark].read_bytes()))
        named = [value for name, value in of_classes.items() if name.endswith((".settings.type", "heads.form"))]
        if own := [name for name in named if is_external(name)]:
            raise ValueError(
                f"{folder} predicts only with {own[0]}, a class of your own, which is none of its files: nobody who "
                "downloads it could open it; share the folder together with the class"
            )
        needed = {*hashes}
    elif mark == _CONFIG and _INDEX in files:
        mark, needed = _INDEX, {*_entries(files[_INDEX], "weight_map").values()}
    for name in sorted(needed - files.keys()):
        raise ValueError(f"{folder} is not finished: it has {mark}, and no {name}; wait for it, or copy it again")
    for name, sha256 in hashes.items():
        if (found := sha256_of(files[name])) != sha256:
            raise ValueError(
                f"{files[name]} is not as it was written: its SHA-256 is {found}, {_BUNDLE} says {sha256}; copy the "
                "bundle again"
            )
    for name, path in files.items():
        if name.endswith(".safetensors"):
            try:
                with safe_open(path, framework="np"):
                    pass
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} is no whole safetensors file: {error}; copy or export it again") from None


def _entries(path: Path, key: str) -> dict[str, str]:
    """The entries of one object in a JSON file."""
    try:
        found = {str(name): str(value) for name, value in json.loads(path.read_bytes())[key].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged: {key}: {type(error).__name__}: {error}; copy or export it again"
        ) from None
    if not found:
        raise ValueError(f"{path} is damaged: {key} is empty; copy or export it again")
    return found
