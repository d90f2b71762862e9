"""Where a table is: a path or URL, a member of a zip file, and the parameters after a question mark.

In: the location as a recipe has it. Out: its parts, and its bytes, decompressed. Kept: nothing.

    x.csv    x.csv.gz    https://host/x.parquet    datasets://NAME?split=train
    x.zip/splits/low_vs_high.csv         a member of a zip file
    x.xlsx?sheet=Kinetics                parameters
    sequences.fasta?labels=labels.fasta&mask=mask.fasta        files beside it, joined by id
"""

import os
import posixpath
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from data.sources.tables import DATASETS, split_query
from data.transport.byte_stream import MAX_INFLATION, ByteStream, is_inflated, require_no_pipe
from data.transport.remote_file import RemoteFile
from zymogen.console.safe_text import unredacted
from zymogen.files.suggestions import did_you_mean
from zymogen.settings.section import expanded, unknown_word

PARAMETERS = ("sheet", "labels", "mask", "separator", "encoding", "header_lines")
"""What may stand after the question mark of a file."""

_COMPRESSIONS = (".gz", ".bgz", ".bgzf", ".zst", ".zstd")
_ZIP = ".zip/"


@dataclass(frozen=True, slots=True)
class TableLocation:
    """One table."""

    name: str
    """The location that the user gave, for errors."""
    place: str
    """Path or URL of the file; of a zip file, if `member` is given."""
    member: str
    """Path inside the zip file; empty for any other."""
    parameters: dict[str, str]
    """Those of `PARAMETERS` that were given."""

    @classmethod
    def of(cls, name: str) -> "TableLocation":
        """The parts of a location.

        Raises:
            ValueError: a parameter that is not known, given twice or without a value; standard input.
        """
        if name.startswith(DATASETS):
            return cls(name, name, "", {})
        place, parameters = (name, {}) if os.path.exists(name) else split_query(unredacted(name), PARAMETERS)
        place = place if "://" in place else expanded(place)
        require_no_pipe(place, "data.table")
        at = place.lower().find(_ZIP)
        if "://" not in place and at >= 0 and os.path.isfile(place[: at + len(_ZIP) - 1]):
            return cls(name, place[: at + len(_ZIP) - 1], place[at + len(_ZIP) :], parameters)
        return cls(name, place, "", parameters)

    def sibling(self, file: str) -> str:
        """Another file of the same folder or zip file; an absolute path or a URL stands for itself."""
        if "://" in file:
            return file
        own = f"{self.place}/{self.member}" if self.member else self.place
        return posixpath.join(posixpath.dirname(own), file)

    @property
    def suffix(self) -> str:
        """The suffix that gives the format, in lower case, without that of a compression; "" for ``datasets://``."""
        if self.place.startswith(DATASETS):
            return ""
        path = PurePosixPath(self.member or self.place.partition("?")[0])
        while path.suffix.lower() in _COMPRESSIONS:
            path = path.with_suffix("")
        return path.suffix.lower()

    def member_named(self, suffixes: tuple[str, ...]) -> "TableLocation":
        """The one table of a zip file that was named without a member.

        Raises:
            ValueError: there is none, or more than one; they are listed.
        """
        with self._zip() as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir() and _is_shown(info.filename)]
        found = [name for name in names if PurePosixPath(name).suffix.lower() in suffixes]
        if len(found) != 1:
            shown = ", ".join(found or names[:10]) or "nothing"
            raise ValueError(
                f"{self.name}: is a zip file with {len(found)} tables; name one as '{self.place}/MEMBER'. It holds "
                f"{shown}"
            )
        return replace(self, member=found[0])

    def read(self, *, packed: bool = False) -> bytes:
        """All bytes, decompressed (gzip, bgzip, zstd, or the member of a zip file).

        Args:
            packed: whether its format is a compressed one, such as .xlsx, which is a zip file: then as stored.

        Raises:
            ValueError: it does not exist, cannot be read, is damaged or above a limit.
        """
        if self.member:
            return self._read_member()
        stream = ByteStream(self.place)
        self.require_file()
        if packed and "://" not in self.place:
            return Path(self.place).read_bytes()
        if packed:
            return b"".join(RemoteFile(self.place).chunks())
        return b"".join(stream.chunks())

    def require_file(self) -> None:
        """Refuse a path at which there is no file.

        Raises:
            ValueError: there is nothing, or a folder.
        """
        if "://" not in self.place and not os.path.exists(self.place):
            raise ValueError(f"{self.name}: no such file; check its name{did_you_mean(Path(self.place))}")
        if os.path.isdir(self.place):
            raise ValueError(f"{self.name}: is a folder; name the table in it")

    def _read_member(self) -> bytes:
        with self._zip() as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if self.member not in names:
                raise ValueError(f"{self.place}: {unknown_word('member', self.member, names)}")
            info = archive.getinfo(self.member)
            if is_inflated(info.file_size, info.compress_size):
                raise ValueError(
                    f"{self.name}: {info.compress_size} bytes become {info.file_size}, where at most {MAX_INFLATION} "
                    "for one are read; unpack it if the file is to be trusted"
                )
            try:
                return archive.read(self.member)
            except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as error:
                raise ValueError(f"{self.name}: cannot be unpacked: {error}; unpack it, and name the file") from error

    def _zip(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.place)
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"{self.place}: cannot be read as a zip file: {error}; download it again") from error

    def parameter(self, name: str, allowed: tuple[str, ...] = ()) -> str | None:
        """The value of a parameter, None without it.

        Raises:
            ValueError: it is none of those that are allowed.
        """
        value = self.parameters.get(name)
        if value is not None and allowed and value not in allowed:
            raise ValueError(f"{self.name}: {unknown_word(name, value, allowed)}")
        return value

    def require_only(self, kind: str, *names: str) -> None:
        """Refuse parameters that a format does not have.

        Raises:
            ValueError: a parameter that is none of `names`.
        """
        wrong: list[Any] = [name for name in self.parameters if name not in names]
        if wrong:
            allowed = f"those of {kind} are {', '.join(names)}" if names else f"{kind} has none"
            raise ValueError(f"{self.name}: the parameter {wrong[0]!r} means nothing here; {allowed}")


def _is_shown(name: str) -> bool:
    """Whether a member of a zip file is the user's, not one that an operating system adds."""
    return not name.startswith("__MACOSX/") and not PurePosixPath(name).name.startswith(".")
