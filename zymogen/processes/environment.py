"""What a process is started in: standard streams, caches of libraries, and sockets, of which any may be unusable.

In: the environment. Out: streams that can be written, and variables that libraries read when they are imported. Kept: a
folder of this user in the temporary folder, where caches need one.
"""

import codecs
import errno
import io
import multiprocessing.util
import os
import stat
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Any

_NOBODY_READS = (errno.EPIPE, errno.EIO)
"""Errors of writing where the reader of a pipe, or the terminal, is gone."""


_CACHES = {
    "NUMBA_CACHE_DIR": (f"{Path(__file__).parent}/__pycache__", "${XDG_CACHE_HOME}/numba"),
    "MPLCONFIGDIR": ("${XDG_CONFIG_HOME}/matplotlib",),
    "HF_DATASETS_CACHE": ("${HF_HOME}/datasets",),
    "TRITON_CACHE_DIR": ("~/.triton/cache",),
}
"""Variables of libraries that cannot start, or complain, without a folder to write; and where they do without it."""
_HOMES = {"XDG_CACHE_HOME": "~/.cache", "XDG_CONFIG_HOME": "~/.config", "HF_HOME": "~/.cache/huggingface"}
"""What stands for variables that are not set."""
_MOST_SOCKET_DIR_BYTES = 70
"""Length of a temporary folder in which sockets can be made: 103 bytes on macOS and 107 on Linux, without the two
levels of names that multiprocessing adds."""


def use_standard_streams(*, outlives_reader: bool) -> None:
    """Replace closed streams by the null device, and escape what a stream's encoding has no character for.

    Args:
        outlives_reader: whether the command continues, without output, where nobody reads its output any longer;
            otherwise it ends then, with status 0.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # or the next file that is opened would be a stream
        os.set_inheritable(opened, True)
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            # File names that are not UTF-8 are written as they are.
            is_utf_8 = codecs.lookup(stream.encoding).name == "utf-8" and name == "stdout"
            stream.reconfigure(errors="surrogateescape" if is_utf_8 else "backslashreplace")
            if stream is getattr(sys, f"__{name}__"):
                raw = _Outliving(stream.fileno(), "w", closefd=False)
                raw.outlives_reader = outlives_reader
                buffering = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
                text = io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, **buffering)
                setattr(sys, name, text)


def use_writable_caches() -> None:
    """Point libraries to a temporary folder where the places of their caches cannot be written.

    Nothing changes for a library whose variable is set. Call it before libraries are imported.
    """
    missing = [
        name
        for name, places in _CACHES.items()
        if name not in os.environ and not any(_is_writable(place) for place in places)
    ]
    if missing and (folder := _own_folder()):
        os.environ.update({name: str(folder / name.lower()) for name in missing})


def use_short_sockets() -> None:
    """Have multiprocessing make its sockets in a folder with a short path, where that of TMPDIR is too long for one.

    Raises:
        ValueError: there is no such folder.
    """
    kept = tempfile.tempdir
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if len(os.fsencode(folder)) <= _MOST_SOCKET_DIR_BYTES and _is_writable(folder):
            try:
                tempfile.tempdir = folder
                multiprocessing.util.get_temp_dir()  # which is asked for once, and removed at the end
            finally:
                tempfile.tempdir = kept
            return
    raise ValueError(
        f"TMPDIR is too long for sockets: {tempfile.gettempdir()} has {len(os.fsencode(tempfile.gettempdir()))} bytes, "
        f"and {_MOST_SOCKET_DIR_BYTES} are allowed; set TMPDIR to a shorter path, or data.workers=0"
    )


def _own_folder() -> Path | None:
    """A folder in the temporary folder that belongs to this user alone, as libraries run code of their caches.

    Its name gets a number where somebody else has a folder of the first name.
    """
    name = f"zymogen-{os.geteuid()}"
    for folder in (Path(tempfile.gettempdir()) / each for each in (name, *(f"{name}-{n}" for n in range(2, 10)))):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            about = folder.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077:
            return folder
    return None


def _is_writable(place: str) -> bool:
    """Whether files can be made in a folder, or in the nearest folder above it that exists."""
    folder = Path(os.path.expanduser(Template(place).safe_substitute({**_HOMES, **os.environ})))
    try:
        tempfile.TemporaryFile(dir=next(each for each in (folder, *folder.parents) if each.exists())).close()
    except OSError:
        return False
    return True


class _Outliving(io.FileIO):
    """A stream whose reader may leave."""

    outlives_reader = True

    def write(self, data: Any, /) -> int:
        """Write, or drop the data and all that follow if nobody reads them."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not self.outlives_reader:
                raise SystemExit(0) from None
            return len(data)
