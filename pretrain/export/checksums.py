"""A folder that its user may change, such as an export or a bundle: replaced whole, and kept where it was changed.

In: a finished folder, and the name that it is to have. Out: that folder under the name. Kept: in it, the SHA-256 of
each file, in the form that ``sha256sum --check`` reads; a folder of that name in which something was changed.
"""

import hashlib
import itertools
import os
import stat
from pathlib import Path

from zymogen.console.safe_text import log
from zymogen.files.durable import flush

CHECKSUMS = ".zymogen.sha256"


def replace_dir(building: Path, folder: Path, before: Path) -> None:
    """Give a finished folder its name.

    A folder of that name becomes `before` if nothing in it was changed, added or removed since it was put there.
    Whatever else has the name is called ``NAME-1``, or the next number that is free.

    Args:
        building: the finished folder; its files get the modes of the user's umask.
        folder: its name, on the same file system.
        before: a free name, of what is to be removed.
    """
    (building / CHECKSUMS).write_bytes(_checksums(building))
    mode = stat.S_IMODE((building / CHECKSUMS).stat().st_mode)
    for path in building.iterdir():
        path.chmod(mode)  # safetensors makes its file private, whatever the umask
        flush(path)
    other = before
    if os.path.lexists(folder) and not is_unchanged(folder):
        number = next(n for n in itertools.count(1) if not os.path.lexists(folder.with_name(f"{folder.name}-{n}")))
        other = folder.with_name(f"{folder.name}-{number}")
        log(f"{folder} is not as it was written; it is kept as {other}")
    if os.path.lexists(folder):
        folder.rename(other)
    try:
        building.rename(folder)
    except BaseException:
        if os.path.lexists(other):
            other.rename(folder)
        raise


def is_unchanged(folder: Path) -> bool:
    """Whether a folder has the files that it was put there with, and nothing else."""
    try:
        return not folder.is_symlink() and (folder / CHECKSUMS).read_bytes() == _checksums(folder)
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(folder: Path) -> bytes:
    """A line for everything below a folder; what is no regular file has no hash."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path != folder / CHECKSUMS:
            digest = sha256_of(path) if path.is_file() and not path.is_symlink() else "other"
            lines.append(f"{digest}  {path.relative_to(folder).as_posix()}\n")
    return os.fsencode("".join(lines))
