"""What a power cut may leave of a folder: every state that the recorded calls allow.

In: calls that create, rename, remove and flush, recorded while a program runs. Out: trees. Kept: nothing.

The model is what POSIX promises and no more (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, name
what programs wrongly assume beyond it). What an fsync has returned for is there. Of a folder, each entry that was made,
renamed or removed after its last fsync may have reached the disk or not, whatever came before or after it. Of a file
that was never flushed, nothing, the first half, or all may be there, or zeros of its length. A rename in one folder is
atomic: one of both names is there.
"""

import io
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Tree = dict[str, "Tree | bytes"]


class Op(NamedTuple):
    """One call; `node` is the number of a folder for changes of its entries, and of what was flushed for "sync"."""

    what: str
    node: int
    name: str = ""
    other: str | int = ""
    """The new name, or the number of what was made."""


@dataclass
class Disk:
    """Records what is done below a folder.

    Args:
        root: what is there now is on the disk.
    """

    root: Path
    ops: list[Op] = field(default_factory=list)
    content: dict[int, bytes] = field(default_factory=dict)
    """Of each file, by its number: what was flushed, or what it held when it was removed."""

    def __post_init__(self) -> None:
        self._entries: dict[int, dict[str, int]] = {}
        self._numbers = itertools.count()
        self._root = self._scan(self.root)
        self._first = {number: dict(entries) for number, entries in self._entries.items()}

    def record(self, patch: pytest.MonkeyPatch) -> None:
        """Record from now on, until the patch is undone."""
        calls: dict[str, Any] = {name: getattr(os, name) for name in ("open", "mkdir", "rename", "unlink", "rmdir")}
        fsync, opened = os.fsync, io.open

        def flush(handle: int) -> None:
            fsync(handle)
            if (node := self._find(Path(os.readlink(f"/proc/self/fd/{handle}")))) is not None:
                self.ops.append(Op("sync", node))

        def made(path: Path, is_folder: bool) -> None:
            folder = self._find(path.parent)
            if folder is not None and path.name not in self._entries[folder]:
                number = next(self._numbers)
                if is_folder:
                    self._entries[number] = {}
                self._entries[folder][path.name] = number
                self.ops.append(Op("make", folder, path.name, number))

        def open_(path: Any, flags: int, *how: Any, dir_fd: int | None = None, **more: Any) -> int:
            handle: int = calls["open"](path, flags, *how, dir_fd=dir_fd, **more)
            if flags & os.O_CREAT:
                made(_whole(path, dir_fd), is_folder=False)
            return handle

        def io_open(file: Any, mode: str = "r", *how: Any, **more: Any) -> Any:
            handle = opened(file, mode, *how, **more)
            if set(mode) & set("wax") and not isinstance(file, int):
                made(Path(file), is_folder=False)
            return handle

        def mkdir(path: Any, *how: Any, dir_fd: int | None = None, **more: Any) -> None:
            calls["mkdir"](path, *how, dir_fd=dir_fd, **more)
            made(_whole(path, dir_fd), is_folder=True)

        def rename(source: Any, target: Any) -> None:
            calls["rename"](source, target)
            folder, other = self._find(Path(source).parent), self._find(Path(target).parent)
            assert folder == other, f"{source} -> {target} is in two folders, which this model does not know"
            if folder is not None:
                self._entries[folder][Path(target).name] = self._entries[folder].pop(Path(source).name)
                self.ops.append(Op("rename", folder, Path(source).name, Path(target).name))

        def removed(call: str) -> Any:
            def remove(path: Any, *how: Any, dir_fd: int | None = None, **more: Any) -> None:
                whole = _whole(path, dir_fd)
                if (node := self._find(whole)) is not None:
                    self._keep(node, whole)
                calls[call](path, *how, dir_fd=dir_fd, **more)
                folder = self._find(whole.parent)
                if folder is not None and whole.name in self._entries[folder]:
                    del self._entries[folder][whole.name]
                    self.ops.append(Op("remove", folder, whole.name))

            return remove

        replacements = {"fsync": flush, "open": open_, "mkdir": mkdir, "rename": rename}
        replacements |= {"unlink": removed("unlink"), "remove": removed("unlink"), "rmdir": removed("rmdir")}
        for name, replacement in replacements.items():
            patch.setattr(os, name, replacement)
        patch.setattr(io, "open", io_open)

    def mark(self, name: str) -> None:
        """Note that the program has come so far."""
        self.ops.append(Op("mark", -1, name))

    def states(self, samples: int, seed: int = 0) -> Iterator[tuple[int, Tree]]:
        """The number of calls before a cut, and a tree that it may leave; none twice for one cut.

        Args:
            samples: drawn choices of what reached the disk, for each cut, where there are too many to take all.
            seed: of these.
        """
        for path in self.root.rglob("*"):
            if (node := self._find(path)) is not None:
                self._keep(node, path)
        draw = random.Random(seed)
        for cut in range(len(self.ops) + 1):
            seen = set()
            done = self.ops[:cut]
            last = {op.node: position for position, op in enumerate(done) if op.what == "sync"}
            pending = [
                n for n, op in enumerate(done) if op.node >= 0 and op.what != "sync" and n > last.get(op.node, -1)
            ]
            loose = {op.other for op in done if op.what == "make" and op.other not in last and op.other in self.content}
            for lost in _subsets(pending, samples, draw):
                for how in range(4 if loose else 1):
                    tree = self._tree(done, lost, loose, how)
                    if (signature := repr(tree)) not in seen:
                        seen.add(signature)
                        yield cut, tree

    def _tree(self, done: Sequence[Op], lost: set[int], loose: set[Any], how: int) -> Tree:
        entries = {number: dict(found) for number, found in self._first.items()}
        for position, op in enumerate(done):
            if op.what in ("sync", "mark") or position in lost:
                continue
            found = entries.setdefault(op.node, {})
            if op.what == "make":
                found[op.name] = int(op.other)
            elif op.name in found:
                number = found.pop(op.name)
                if op.what == "rename":
                    found[str(op.other)] = number

        def of(number: int) -> Tree | bytes:
            if number not in self._entries:
                whole = self.content.get(number, b"")
                torn = (whole, b"", whole[: len(whole) // 2], bytes(len(whole)))
                return torn[how] if number in loose else whole
            return {name: of(each) for name, each in entries.get(number, {}).items()}

        tree = of(self._root)
        assert isinstance(tree, dict)
        return tree

    def _scan(self, path: Path) -> int:
        number = next(self._numbers)
        if path.is_dir():
            self._entries[number] = {each.name: self._scan(each) for each in path.iterdir()}
        else:
            self.content[number] = path.read_bytes()
        return number

    def _find(self, path: Path) -> int | None:
        if not path.is_relative_to(self.root):
            return None
        number = self._root
        for name in path.relative_to(self.root).parts:
            found = self._entries.get(number, {}).get(name)
            if found is None:
                return None
            number = found
        return number

    def _keep(self, node: int, path: Path) -> None:
        if node not in self._entries:
            self.content[node] = path.read_bytes()


def write(tree: Tree, folder: Path) -> None:
    """Make a tree on this disk."""
    folder.mkdir()
    for name, found in tree.items():
        if isinstance(found, bytes):
            (folder / name).write_bytes(found)
        else:
            write(found, folder / name)


def _whole(path: Any, dir_fd: int | None) -> Path:
    return Path(path) if dir_fd is None else Path(os.readlink(f"/proc/self/fd/{dir_fd}")) / path


def _subsets(pending: Sequence[int], samples: int, draw: random.Random) -> Iterator[set[int]]:
    """What is lost of the pending calls: everything possible of a few; else none, all, each alone, all but each."""
    if 2 ** len(pending) <= 2 * samples:
        for size in range(len(pending) + 1):
            yield from map(set, itertools.combinations(pending, size))
        return
    yield set()
    yield set(pending)
    for each in pending:
        yield {each}
        yield set(pending) - {each}
    for _ in range(samples):
        yield {each for each in pending if draw.random() < 0.5}
