"""The two records of a checkpoint: `manifest.json`, what it consists of, and `trainer.json`.

In: bytes that may be damaged or hostile. Out: frozen dataclasses, or `InvalidCheckpoint` with what
was found and what is allowed. Both files are canonical JSON.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pretrain.checkpoint.canonical import (
    InvalidCheckpoint,
    Kinds,
    canonical,
    parse_canonical,
    require_fields,
)
from pretrain.checkpoint.files.blocks import num_blocks
from pretrain.run.errors import CheckpointError
from pretrain.run.versions import version

SCHEMA = "zymogen.checkpoint/1"
_PACKAGE = "zymogen"
MANIFEST_FILE = "manifest.json"
TRAINER_FILE = "trainer.json"
FINGERPRINTS = ("identity", "schedule", "corpus", "split")
FROZEN = "frozen"
"""The fingerprint of parameters that the run does not train (`checkpoint.frozen`); absent where it trains all."""
CURSOR = ("pass_index", "window", "bin", "tokens_before_window")
CONSUMED = "corpus/consumed"
CONTACT_HEAD = "contact_head"
"""Entry of a run that started from an ESM-2 with a contact head, which it does not train."""
LOSS_SCALE = "loss_scale"
SKIPPED_BINS = "skipped_bins"
"""Entry of a run that has left bins out (`pretrain.recovery.left_out`)."""
LOSS_MONITOR = "loss_monitor"
"""Entry with the losses of the latest steps, and how many in a row were skipped (`pretrain.recovery.numerical`)."""
BEST = "best"
"""Entry of a job that selects a checkpoint (`checkpoint.best`); others cannot continue from one that has it."""
FORM = frozenset({"schema", "format", "dtype"})
"""Reasons of an `InvalidCheckpoint` that say, once the hashes are right, that another version wrote it."""
ENTRIES = frozenset({CONSUMED, LOSS_SCALE, SKIPPED_BINS, LOSS_MONITOR})
"""Names in `TrainerState.entries` that every run of this version can continue from."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_HEX = re.compile(r"([0-9a-f]{2})+")
_NAME = re.compile(r"step-(\d{9,})")
_ENTRY = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")

_FILE: Kinds = {"path": (str,), "size": (int,), "sha256": (list,)}
_TOPOLOGY: Kinds = {"world_size": (int,), "engine": (str,), "precision": (str,)}
_TRAINER: Kinds = {
    **dict.fromkeys(("step", "tokens_seen", "skipped_steps"), (int,)),
    **{"cursor": (dict,), "chain": (str,), "entries": (dict,)},
}
_OF_ENTRIES: dict[str, Kinds] = {
    SKIPPED_BINS: {"bins": (list,)},
    LOSS_MONITOR: {"losses": (list,), "skipped_in_a_row": (int,)},
}
_LOSS_SCALE: Kinds = {"scale": (float,), "growth_tracker": (int,)}
_MANIFEST: Kinds = {
    **dict.fromkeys(("step", "attempt"), (int,)),
    **dict.fromkeys(("schema", "created"), (str,)),
    **dict.fromkeys(("fingerprints", "topology", "versions"), (dict,)),
    **{"parent": (str, type(None)), "files": (list,), "digest": (str,)},
}


class OtherVersion(CheckpointError, ValueError):
    """A checkpoint that is whole, in a form that this version does not know: nothing to repair, and nothing to move."""

    def __init__(self, path: Path, writer: object, what: str) -> None:
        written = writer.get(_PACKAGE, "?") if isinstance(writer, Mapping) else "?"
        super().__init__(
            path,
            f"written by {_PACKAGE} {written}, this is {_PACKAGE} {version(_PACKAGE)}, which does not know its form: "
            f"{what}",
            "it stays where it is; continue with the version that wrote it, or choose another run.directory",
        )


@contextmanager
def form_of(path: Path, writer: object) -> Iterator[None]:
    """Context in which hashes are right: content of another form was written like that, by another version.

    Raises:
        OtherVersion: in place of an `InvalidCheckpoint` whose reason is one of `FORM`.
    """
    try:
        yield
    except InvalidCheckpoint as error:
        if error.reason not in FORM:
            raise
        raise OtherVersion(path, writer, str(error)) from error


def checkpoint_name(step: int) -> str:
    """Directory name of a step: `step-000012000`; sorts by step up to 10^9 of them."""
    return f"step-{step:09d}"


def step_of_name(name: str) -> int | None:
    """Step of a checkpoint's directory name, None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and checkpoint_name(int(match[1])) == name else None


def require_relative_path(path: str) -> None:
    """A path that stays inside the checkpoint: relative, `/`-separated, no empty, `.` or `..` part.

    Raises:
        InvalidCheckpoint: with the path.
    """
    parts = path.split("/")
    inside = all(part not in ("", ".", "..") for part in parts) and path.isprintable()
    if not inside or "\\" in path or ":" in path:
        raise InvalidCheckpoint(
            "path",
            f"manifest names the file {path!r}; allowed is a relative path with no empty, '.' or "
            "'..' part, no backslash and no colon",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerState:
    """Where the run stands, apart from tensors."""

    step: int
    """Optimizer steps of the run, skipped ones included."""
    tokens_seen: int
    """Real tokens of all bins consumed."""
    cursor: dict[str, int]
    """Data position of the last consumed step: the four numbers of `CURSOR`."""
    chain: str
    """Running hash over the bins consumed, lower-case hex."""
    skipped_steps: int
    """Steps that the optimizer did not take."""
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What else is needed to continue, by the name of its owner: one JSON object each.

    A later version, or a job, adds a name, and no schema. What is read is kept, whatever its name, so that the weights
    of any checkpoint can be exported; `load.restore` refuses to continue from one with an unknown name.
    """

    def __post_init__(self) -> None:
        """Check every value, when it is read and when it is written."""
        require_fields("trainer", asdict(self), _TRAINER)
        require_fields("trainer.cursor", self.cursor, dict.fromkeys(CURSOR, (int,)))
        if not _HEX.fullmatch(self.chain):
            raise InvalidCheckpoint("format", f"trainer.chain: got {self.chain!r}, allowed hex")
        require_fields("trainer.entries", dict(self.entries), dict.fromkeys(self.entries, (dict,)))
        wrong = [name for name in self.entries if not _ENTRY.fullmatch(name)]
        if wrong:
            raise InvalidCheckpoint("format", f"trainer.entries: got {wrong[:5]}, allowed names such as {CONSUMED!r}")
        if LOSS_SCALE in self.entries:
            _require_loss_scale(self.entries[LOSS_SCALE])
        for name in _OF_ENTRIES.keys() & self.entries.keys():
            require_fields(f"trainer.entries.{name}", self.entries[name], _OF_ENTRIES[name])

    def to_bytes(self) -> bytes:
        """Content of trainer.json."""
        return canonical(asdict(self))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """From the content of trainer.json; raises InvalidCheckpoint."""
        return cls(**require_fields("trainer", parse_canonical(raw, TRAINER_FILE), _TRAINER))


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of a checkpoint: path relative to it, size in bytes, lower-case hex SHA-256 of each of its blocks.

    That of a file of one block is the file's (`checkpoint.files.blocks`).
    """

    path: str
    size: int
    sha256: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check path and hashes."""
        require_relative_path(self.path)
        for found in self.sha256:
            if not (isinstance(found, str) and _SHA256.fullmatch(found)):
                raise InvalidCheckpoint("format", f"{self.path}: sha256 {found!r} is not one")
        if len(self.sha256) != (wanted := num_blocks(self.size)):
            text = f"{self.path}: {len(self.sha256)} hashes, allowed {wanted} for {self.size} bytes"
            raise InvalidCheckpoint("format", text)

    @classmethod
    def from_record(cls, record: object) -> Self:
        """From an object of JSON; raises InvalidCheckpoint."""
        found = require_fields("file", record, _FILE)
        return cls(**{**found, "sha256": tuple(found["sha256"])})

    def record(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {"path": self.path, "size": self.size, "sha256": list(self.sha256)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """How the run that wrote the checkpoint was spread; a reader may be spread differently."""

    world_size: int
    engine: str
    precision: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint consists of, and whose it is; written last."""

    step: int
    attempt: int
    """Which start of the run wrote it."""
    parent: str | None
    """`self_sha256` of the checkpoint this run continued from, None for the first."""
    created: str
    """UTC time, ISO 8601, ending in Z."""
    fingerprints: dict[str, str]
    """The hashes named in `FINGERPRINTS`, and `FROZEN` where the run has frozen parameters."""
    topology: Topology
    versions: dict[str, str]
    """Library -> version."""
    files: tuple[FileEntry, ...]
    """All files except the manifest, sorted by path."""
    digest: str
    """Identity of all tensors, whatever engine and world (`checkpoint.digests`)."""
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        """Check every value, when it is read and when it is written."""
        require_fields("manifest", self._record(), _MANIFEST)
        if not _SHA256.fullmatch(self.digest):
            raise InvalidCheckpoint("format", f"manifest.digest: {self.digest!r} is no sha256")
        kinds: Kinds = dict.fromkeys([*FINGERPRINTS, *self.fingerprints.keys() & {FROZEN}], (str,))
        require_fields("fingerprints", self.fingerprints, kinds)
        require_fields("versions", self.versions, dict.fromkeys(self.versions, (str,)))
        if self.parent is not None and not _SHA256.fullmatch(self.parent):
            raise InvalidCheckpoint("format", f"manifest.parent: {self.parent!r} is no sha256")
        _require_utc(self.created)
        paths = [entry.path for entry in self.files]
        if paths != sorted(set(paths)) or MANIFEST_FILE in paths:
            raise InvalidCheckpoint("path", f"manifest.files: got {paths[:8]}, allowed each path once, in order")

    @property
    def entries(self) -> dict[str, FileEntry]:
        """The files by path."""
        return {entry.path: entry for entry in self.files}

    @property
    def self_sha256(self) -> str:
        """Hash of the canonical manifest without this field; the checkpoint's identity."""
        return hashlib.sha256(canonical(self._record())).hexdigest()

    def to_bytes(self) -> bytes:
        """Content of manifest.json."""
        return canonical({**self._record(), "self_sha256": self.self_sha256})

    @classmethod
    def from_bytes(cls, raw: bytes, path: Path) -> Self:
        """From the content of manifest.json.

        Args:
            raw: the content.
            path: of the checkpoint, for errors.

        Raises:
            InvalidCheckpoint: it is not as it was written, or names a file that no manifest may.
            OtherVersion: it is as it was written, and says what this version does not know. Every schema has the
                canonical form and `self_sha256`, so that a version can tell another one from damage.
        """
        value = parse_canonical(raw, MANIFEST_FILE)
        if not isinstance(value, dict):
            raise InvalidCheckpoint("format", f"manifest: got {type(value).__name__}, allowed an object")
        claimed = value.pop("self_sha256", None)
        actual = hashlib.sha256(canonical(value)).hexdigest()
        if claimed != actual:
            raise InvalidCheckpoint("manifest", f"self_sha256: says {claimed}, content {actual}")
        with form_of(path, value.get("versions")):
            if value.get("schema") != SCHEMA:  # first: a later schema may have other fields
                raise InvalidCheckpoint("schema", f"schema: got {value.get('schema')!r}, allowed {SCHEMA!r}")
            require_fields("manifest", value, _MANIFEST)
            topology = Topology(**require_fields("topology", value.pop("topology"), _TOPOLOGY))
            listed = tuple(map(FileEntry.from_record, value.pop("files")))
            return cls(**value, topology=topology, files=listed)

    def _record(self) -> dict[str, Any]:
        return {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "topology": asdict(self.topology),
            "files": [entry.record() for entry in self.files],
        }


def require_digest(what: str, found: object) -> None:
    """Raise InvalidCheckpoint if `found` is not a digest of tensors: 32 hexadecimal digits."""
    if not (isinstance(found, str) and _DIGEST.fullmatch(found)):
        raise InvalidCheckpoint("format", f"{what}: got {found!r}, allowed 32 hexadecimal digits, lower-case")


def _require_loss_scale(kept: Mapping[str, Any]) -> None:
    """Check what fp16 keeps: `scale`, the factor, and `growth_tracker`, the steps since it changed."""
    scale = require_fields("trainer.loss_scale", kept, _LOSS_SCALE)["scale"]
    if not 0 < scale < 2.0**128:
        raise InvalidCheckpoint("format", f"trainer.loss_scale.scale: got {scale}, allowed above 0, below 2^128")


def _require_utc(created: str) -> None:
    try:
        valid = created.endswith("Z") and datetime.fromisoformat(created) is not None
    except ValueError:
        valid = False
    if not valid:
        raise InvalidCheckpoint("format", f"manifest.created: got {created!r}, allowed UTC with Z")
