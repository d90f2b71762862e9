"""A folder as it is to be pushed: whether it is finished, its files, and the hashes by which a hub knows them.

In: a folder, which nobody vouches for. Out: `LocalFile`s, or what is missing. Kept: nothing.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

LIST = ".zymogen-push.json"
"""Name of the list of our files in a repository."""
FORMAT = "zymogen.push/1"
_LEFT_OUT = (".git", ".cache")
"""Folders that a hub does not take; a download leaves the second one."""


@dataclass(frozen=True)
class LocalFile:
    """One file to push."""

    name: str
    """Its path in the repository, with "/"."""
    source: Path | bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """The name of its content among large files."""
        return self._digest(hashlib.sha256())

    @cached_property
    def git_blob(self) -> str:
        """The name of its content among git's objects."""
        return self._digest(hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False))

    def _digest(self, begun: Any) -> str:
        with self._opened() as file:
            return hashlib.file_digest(file, lambda: begun).hexdigest()

    def _opened(self) -> BufferedReader | BytesIO:
        return BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


def finished_files(folder: Path) -> list[LocalFile]:
    """The files of a finished model's folder, by name, and the list of them that goes with them.

    Finished is: weights and configuration as transformers reads them, with every shard; an adapter of peft's; or a
    bundle of `finetune` in which every file is as it was written.

    Raises:
        ValueError: the folder is none of these, or something in it is no regular file.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name one with a finished model, or a run directory")
    paths = dict(_walk(folder))
    _require_finished(folder, paths)
    files = [LocalFile(name, path) for name, path in sorted(paths.items())]
    return [*files, LocalFile(LIST, listing(paths))]


def listing(names: Any) -> bytes:
    """The list of our files, as it is kept in the repository: it follows from the names alone."""
    return (json.dumps({"format": FORMAT, "files": sorted(names)}, indent=1) + "\n").encode()


def listed(content: bytes) -> set[str] | None:
    """The names in a list; None if it is not one that was written here."""
    try:
        read = json.loads(content)
        names = read["files"] if read["format"] == FORMAT else None
        return {str(name) for name in names} if isinstance(names, list) else None
    except (ValueError, KeyError, TypeError):
        return None


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in [*folders, *names]:
            path = Path(parent, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise ValueError(f"{path} is no regular file; push a copy without links, as cp -rL makes it")
        for name in names:
            path = Path(parent, name)
            if (relative := path.relative_to(folder).as_posix()) != LIST:
                yield relative, path


def _require_finished(folder: Path, paths: dict[str, Path]) -> None:
    for mark, check in _KINDS.items():
        if mark in paths:
            check(folder, paths)
            break
    else:
        raise ValueError(
            f"{folder} holds no finished model: it has none of {', '.join(_KINDS)}; name the folder export/ or bundle/ "
            "of a run, or an adapter's"
        )
    for name, path in paths.items():
        if name.endswith(".safetensors"):
            try:
                with safe_open(path, framework="np"):
                    pass
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} is no whole safetensors file: {error}; copy or export it again") from None


def _bundle(folder: Path, paths: dict[str, Path]) -> None:
    files = _read(paths["bundle.json"]).get("files")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{folder / 'bundle.json'} lists no files; copy the bundle again")
    for name, sha256 in files.items():
        _require(folder, paths, name, "bundle.json")
        if (found := LocalFile(name, paths[name]).sha256) != sha256:
            raise ValueError(
                f"{paths[name]} is not as it was written: its SHA-256 is {found}, bundle.json says {sha256}; copy the "
                "bundle again"
            )


def _adapter(folder: Path, paths: dict[str, Path]) -> None:
    _require(folder, paths, "adapter_model.safetensors", "adapter_config.json")


def _transformers(folder: Path, paths: dict[str, Path]) -> None:
    index = "model.safetensors.index.json"
    if index not in paths:
        _require(folder, paths, "model.safetensors", "config.json")
        return
    shards = _read(paths[index]).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ValueError(f"{folder / index} lists no weights; export it again")
    for name in sorted({str(name) for name in shards.values()}):
        _require(folder, paths, name, index)


_KINDS: dict[str, Callable[[Path, dict[str, Path]], None]] = {
    "bundle.json": _bundle,
    "adapter_config.json": _adapter,
    "config.json": _transformers,
}
"""The file that marks each kind of folder -> the check of the others."""


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}; export it again") from None
    return content if isinstance(content, dict) else {}


def _require(folder: Path, paths: dict[str, Path], name: str, because: str) -> None:
    if name not in paths:
        raise ValueError(f"{folder} is not finished: it has {because}, and no {name}; wait for it, or copy it again")
