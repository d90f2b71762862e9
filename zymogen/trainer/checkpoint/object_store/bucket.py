"""The checkpoints of a run in an object store: publish one, list them, fetch one, keep the newest.

In: the folder of a save that is complete. Out: the same checkpoint under its own prefix. Kept: nothing.

Two machines may start the same run, as one does not see the other's lock. A start therefore claims its number with an
object that the store makes once, and a save that finds a later claim is refused: the process was replaced.
"""

import gzip
import json
import re
import secrets
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from socket import gethostname
from typing import NamedTuple

from zymogen.files.durable import flush
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.manifest import MANIFEST_FILE, CheckpointManifest, checkpoint_name, step_of_name
from zymogen.trainer.checkpoint.object_store.objects import ObjectStore

RECORDS_FILE = "records.json.gz"
RECORDS = ("run.json", "recipe.toml", "metrics.jsonl")
"""Files of the run directory without which another machine could not continue."""
_SAVE = re.compile(r"(step-\d{9,})-a(\d+)-(\d{8})")
_CLAIMS = "attempts/"
_CLAIM = re.compile(rf"{_CLAIMS}(\d{{6,}})")
_GZIP = b"\x1f\x8b"
"""How compressed content begins, and no claim does."""
_OURS = re.compile(rf"(model|optimizer)/(\d{{5}}\.safetensors|index\.json)|trainer\.json|{re.escape(RECORDS_FILE)}")
"""What a save consists of, besides its manifest; nothing else below its prefix is ever removed."""


class StoredCheckpoint(NamedTuple):
    """One save in the store, in the order of a run: a later attempt began where an earlier one was left."""

    attempt: int
    step: int
    number: int
    prefix: str
    names: tuple[str, ...]
    """Its objects, below the prefix."""

    @property
    def is_whole(self) -> bool:
        """Whether it is a checkpoint."""
        return MANIFEST_FILE in self.names


def prefix_of(step: int, attempt: int, number: int) -> str:
    """Where the objects of a save are, which no other save of the run has."""
    return f"{checkpoint_name(step)}-a{attempt}-{number:08d}"


class CheckpointBucket:
    """The checkpoints of one run below a URL.

    Every method raises OSError if the store does not answer, or refuses.

    Args:
        url: as of `ObjectStore`.
    """

    def __init__(self, url: str) -> None:
        self._objects = ObjectStore(url)
        self.url = self._objects.url

    def claim(self, attempt: int) -> None:
        """Say that an attempt has started; every save of an earlier one is refused from now on.

        Raises:
            CheckpointError: another start has taken the number.
        """
        if not self._objects.create(f"{_CLAIMS}{attempt:06d}", f"{gethostname()} {secrets.token_hex(8)}\n".encode()):
            raise self._replaced(attempt, f"another start of the run has the number {attempt}, too")

    def put_records(self, attempt: int, content: bytes) -> None:
        """Store what is known of all attempts in place of the claim of the newest; earlier claims are removed."""
        self._objects.write(f"{_CLAIMS}{attempt:06d}", content)
        self._objects.remove(f"{_CLAIMS}{number:06d}" for number in self._claims() if number < attempt)

    def attempt_records(self) -> bytes | None:
        """What `put_records` has stored last; None if it has not."""
        contents = (self._objects.read(f"{_CLAIMS}{number:06d}") for number in sorted(self._claims(), reverse=True))
        return next((content for content in contents if content.startswith(_GZIP)), None)

    def last_attempt(self) -> int:
        """The number of the last start that claimed one; 0 without any."""
        return max(self._claims(), default=0)

    def put(self, folder: Path, prefix: str, paths: Iterable[str]) -> None:
        """Store files of a save, each as an object."""
        for path in paths:
            self._objects.put(folder / path, f"{prefix}/{path}")

    def publish(self, prefix: str, manifest: CheckpointManifest, run_directory: Path) -> None:
        """Make a save whose other files are stored a checkpoint, by its manifest.

        Raises:
            CheckpointError: a later start has claimed its number.
        """
        self._objects.write(f"{prefix}/{RECORDS_FILE}", self._records_of(run_directory))
        last = self.last_attempt()
        if last > manifest.attempt:
            raise self._replaced(manifest.attempt, f"attempt {last} of the run has started elsewhere")
        if not self._objects.create(f"{prefix}/{MANIFEST_FILE}", manifest.to_bytes()):
            raise self._replaced(manifest.attempt, f"{prefix} is another process's checkpoint")

    def saves(self) -> list[StoredCheckpoint]:
        """What is stored, the newest first; a save without a manifest is one that was cut off, or is being written."""
        found: dict[str, list[str]] = {}
        for name in self._objects.names():
            prefix, _, rest = name.partition("/")
            if _SAVE.fullmatch(prefix):
                found.setdefault(prefix, []).append(rest)
        return sorted((_saved(prefix, names) for prefix, names in found.items()), reverse=True)

    def fetch(self, saved: StoredCheckpoint, into: Path) -> None:
        """Write a checkpoint into a new folder, which is then what the run directory would have, and durable.

        Raises:
            InvalidCheckpointError, UnsupportedVersionError: its manifest is damaged, or of another version.
        """
        raw = self._objects.read(f"{saved.prefix}/{MANIFEST_FILE}")
        into.mkdir()
        for path in (
            *(entry.path for entry in CheckpointManifest.from_bytes(raw, Path(saved.prefix)).files),
            MANIFEST_FILE,
        ):
            target = into / path
            target.parent.mkdir(exist_ok=True)
            if path not in (*saved.names, MANIFEST_FILE):
                raise InvalidCheckpointError("missing", f"{saved.prefix}/{path} is not in the object store")
            self._objects.get(f"{saved.prefix}/{path}", target)
            flush(target)
        for folder in (*{target.parent for target in into.glob("*/*")}, into):
            flush(folder)

    def records(self, saved: StoredCheckpoint) -> dict[str, str]:
        """The files of the run directory at the time of a save: name -> content.

        Raises:
            InvalidCheckpointError: they are not as they were written.
        """
        where = f"{saved.prefix}/{RECORDS_FILE}"
        try:
            found = json.loads(gzip.decompress(self._objects.read(where)))
            return {name: str(found[name]) for name in RECORDS if name in found}
        except (ValueError, TypeError, KeyError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidCheckpointError("records", f"{where}: {error}") from error

    def retain(self, published: str, *, keep: int, kept: Callable[[int], bool]) -> list[str]:
        """Remove all but the newest checkpoints, and what saves before this one left when they were cut off.

        Args:
            published: the prefix of the checkpoint just published, which stays, as does all that is newer.
            keep: how many stay.
            kept: whether the checkpoint of a step stays, too; of one step, the newest does.

        Returns:
            The prefixes whose objects are gone.
        """
        saves, steps, gone = self.saves(), set[int](), []
        newest = [saved.prefix for saved in saves if saved.is_whole][:keep]
        own = _saved(published, ())
        for saved in saves:
            is_earlier = (saved.attempt, saved.number) < (own.attempt, own.number)
            first = saved.is_whole and saved.step not in steps
            if saved.is_whole:
                steps.add(saved.step)
            if is_earlier and saved.prefix not in newest and not (first and kept(saved.step)):
                ours = sorted(name for name in saved.names if _OURS.fullmatch(name))
                names = [MANIFEST_FILE, *ours] if saved.is_whole else ours  # first what makes it a checkpoint
                self._objects.remove(f"{saved.prefix}/{name}" for name in names)
                gone.append(saved.prefix)
        return gone

    def _records_of(self, run_directory: Path) -> bytes:
        """The records of a run; a line that is just being written is left out."""
        paths = [path for name in RECORDS if (path := run_directory / name).is_file()]
        contents = {path.name: path.read_bytes() for path in paths}
        found = {name: content[: content.rfind(b"\n") + 1].decode() for name, content in contents.items()}
        return gzip.compress(json.dumps(found).encode(), mtime=0)

    def _claims(self) -> list[int]:
        found = (_CLAIM.fullmatch(name) for name in self._objects.names(_CLAIMS))
        return [int(match[1]) for match in found if match]

    def _replaced(self, attempt: int, reason: str) -> CheckpointError:
        return CheckpointError(
            self.url,
            reason,
            f"end this process, attempt {attempt}: the other one continues the run",
        )


def _saved(prefix: str, names: Iterable[str]) -> StoredCheckpoint:
    match = _SAVE.fullmatch(prefix)
    assert match, prefix
    step = step_of_name(match[1])
    return StoredCheckpoint(int(match[2]), -1 if step is None else step, int(match[3]), prefix, tuple(names))
