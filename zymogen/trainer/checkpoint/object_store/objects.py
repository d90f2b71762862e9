"""Objects under one URL: list, write, create, read and remove them, by fsspec.

In: names below the URL. Out: bytes. Kept: the connection.

Each error of a library becomes an OSError that names the object, so that a store that does not answer is treated like a
disk that does not.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ObjectStore:
    """The objects below a URL.

    Args:
        url: `run.checkpoint_url`; what is below it belongs to one run.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._files: Any = None

    def names(self, below: str = "") -> list[str]:
        """All objects, or those whose names begin so, by their names below the URL."""
        with self._at(below) as (files, path):
            found = files.find(path)
        start = len(self.url.partition("://")[2]) + 1
        return [name[start:] for name in found]

    def put(self, source: Path, name: str) -> None:
        """Write a file as an object."""
        with self._at(name) as (files, path):
            files.put_file(str(source), path)

    def write(self, name: str, content: bytes) -> None:
        """Write an object."""
        with self._at(name) as (files, path):
            files.pipe_file(path, content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object only if there is none, which the store itself decides; whether it now has this content.

        A request whose answer was lost is repeated, and then finds its own object: the same bytes are no conflict.
        """
        with self._at(name) as (files, path):
            try:
                files.pipe_file(path, content, mode="create")
            except FileExistsError:
                return bool(files.cat_file(path) == content)
        return True

    def read(self, name: str) -> bytes:
        """The content of an object."""
        with self._at(name) as (files, path):
            return bytes(files.cat_file(path))

    def get(self, name: str, target: Path) -> None:
        """Write an object into a file."""
        with self._at(name) as (files, path):
            files.get_file(path, str(target))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; one that is gone already is none."""
        for name in names:
            with self._at(name) as (files, path):
                files.rm_file(path)

    @contextmanager
    def _at(self, name: str) -> Iterator[tuple[Any, str]]:
        """The file system, and the path of an object in it. It has a thread, so it is made where it is used first."""
        path = f"{self.url}/{name}".rstrip("/")
        try:
            if self._files is None:
                import fsspec

                kind = self.url.partition(":")[0]
                self._files = fsspec.filesystem(kind, use_listings_cache=False, skip_instance_cache=True)
            yield self._files, path
        except ImportError as error:
            raise OSError(errno.ENOPKG, f"{path}: {error}; pip install 'zymogen[s3]'") from error
        except Exception as error:
            raise OSError(errno.EIO, f"{path}: {type(error).__name__}: {error}") from error
