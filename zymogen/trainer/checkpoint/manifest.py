"""The two records of a checkpoint: `manifest.json`, what it consists of, and `trainer.json`.

In: bytes that may be damaged or hostile. Out: frozen dataclasses, or `InvalidCheckpointError` with what
was found and what is allowed. Both files are canonical JSON.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from data.order.plan import Cursor, extend_chain
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.canonical import (
    Count,
    InvalidCheckpointError,
    R,
    Sha256,
    canonical,
    parse_canonical,
    parsed,
)
from zymogen.trainer.checkpoint.files.blocks import FileEntry
from zymogen.trainer.run.versions import version

SCHEMA = "zymogen.checkpoint/1"
_PACKAGE = "zymogen"
MANIFEST_FILE = "manifest.json"
TRAINER_FILE = "trainer.json"
FINGERPRINTS = ("identity", "schedule", "corpus", "split")
FROZEN = "frozen"
"""The fingerprint of what the run does not train (`checkpoint.digests.digest.identity`); absent where it trains all."""
LOSS_SCALE = "loss_scale"
SKIPPED_BINS = "skipped_bins"
"""Entry of a run that has left bins out (`trainer.recovery.loss_monitor`)."""
LOSS_MONITOR = "loss_monitor"
"""Entry with the losses of the latest steps, and how many in a row were skipped (`trainer.recovery.loss_monitor`)."""
BEST = "best"
"""Entry of a job that selects a checkpoint (`checkpoint.best`); others cannot continue from one that has it."""
ENTRIES = frozenset({LOSS_SCALE, SKIPPED_BINS, LOSS_MONITOR})
"""Names in `TrainerState.entries` that every run of this version can continue from; a job adds its own."""

_NAME = re.compile(r"step-(\d{9,})")


class UnsupportedVersionError(CheckpointError, ValueError):
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
        UnsupportedVersionError: in place of an `InvalidCheckpointError` whose reason is "format".
    """
    try:
        yield
    except InvalidCheckpointError as error:
        if error.reason != "format":
            raise
        raise UnsupportedVersionError(path, writer, str(error)) from error


def checkpoint_name(step: int) -> str:
    """Directory name of a step: `step-000012000`; sorts by step up to 10^9 of them."""
    return f"step-{step:09d}"


def step_of_name(name: str) -> int | None:
    """Step of a checkpoint's directory name, None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and checkpoint_name(int(match[1])) == name else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _LossScale:
    scale: Annotated[float, Field(gt=0, lt=2.0**128)]
    growth_tracker: Count
    """Steps since the scale changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _SkippedBins:
    bins: list[Count]


@dataclass(frozen=True, kw_only=True, slots=True)
class _LossMonitor:
    losses: list[float]
    skipped_in_a_row: Count


_KNOWN: dict[str, type[Any]] = {LOSS_SCALE: _LossScale, SKIPPED_BINS: _SkippedBins, LOSS_MONITOR: _LossMonitor}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerState:
    """Where the run stands, apart from tensors."""

    step: Count
    """Optimizer steps of the run, skipped ones included."""
    tokens_seen: Count
    """Real tokens of all bins consumed."""
    cursor: Cursor
    """Data position of the last consumed step."""
    chain: Annotated[str, Field(pattern="^([0-9a-f]{2})+$")]
    """Running hash over the bins consumed, lower-case hex."""
    skipped_steps: Count
    """Steps that the optimizer did not take."""
    entries: Mapping[Annotated[str, Field(pattern="^[a-z0-9_]+(/[a-z0-9_]+)*$")], Mapping[str, Any]] = field(
        default_factory=dict
    )
    """What else is needed to continue, by the name of its owner: one JSON object each.

    A later version, or a job, adds a name, and no schema. What is read is kept, whatever its name, so that the weights
    of any checkpoint can be exported; `load.restore` refuses to continue from one with an unknown name.
    """

    def after(self, num_tokens: int, cursor: Cursor, digests: Sequence[int], *, applied: bool) -> "TrainerState":
        """Return the state after a step.

        Args:
            num_tokens: real tokens of the step's bins.
            cursor: data position of the step.
            digests: of the step's bins, in order.
            applied: whether the optimizer took the step.
        """
        return replace(
            self,
            step=self.step + 1,
            tokens_seen=self.tokens_seen + num_tokens,
            cursor=cursor,
            chain=extend_chain(self.chain, digests),
            skipped_steps=self.skipped_steps + (not applied),
        )

    def to_bytes(self) -> bytes:
        """Content of trainer.json; raises InvalidCheckpoint where no reader would take it."""
        self.from_bytes(raw := canonical(asdict(self)))
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """From the content of trainer.json; raises InvalidCheckpoint."""
        found = parsed(cls, raw, "trainer")
        if min(astuple(found.cursor)) < 0:
            raise InvalidCheckpointError("format", f"trainer.cursor: got {found.cursor}, allowed 0 or more")
        for name, kind in _KNOWN.items():
            found.entry(name, kind)
        return found

    def entry(self, name: str, kind: type[R]) -> R | None:
        """An entry as a dataclass; None where there is none of that name; raises InvalidCheckpoint."""
        kept = self.entries.get(name)
        return None if kept is None else parsed(kind, canonical(kept), f"trainer.entries.{name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointManifest:
    """What a checkpoint consists of, and whose it is; written last."""

    step: Count
    attempt: Count
    """Which start of the run wrote it."""
    parent: Sha256 | None
    """`self_sha256` of the checkpoint this run continued from, None for the first."""
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    """UTC time, ISO 8601."""
    fingerprints: dict[str, str]
    """The hashes named in `FINGERPRINTS`, and `FROZEN` where the run has frozen parameters."""
    world_size: Count
    """Processes that wrote it; a reader may be spread differently, and compute in another precision."""
    engine: str
    precision: str
    versions: dict[str, str]
    """Library -> version."""
    files: tuple[FileEntry, ...]
    """All files except the manifest, sorted by path."""
    digest: Sha256
    """Identity of all tensors, whatever engine and world (`checkpoint.digests`)."""
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        """Check the names of fingerprints and of files."""
        if {*FINGERPRINTS} != self.fingerprints.keys() - {FROZEN}:
            raise InvalidCheckpointError(
                "format", f"fingerprints: got {sorted(self.fingerprints)}, allowed {FINGERPRINTS}"
            )
        paths = [entry.path for entry in self.files]
        if paths != sorted(set(paths)) or MANIFEST_FILE in paths:
            raise InvalidCheckpointError("path", f"manifest.files: got {paths[:8]}, allowed each path once, in order")

    @property
    def entries(self) -> dict[str, FileEntry]:
        """The files by path."""
        return {entry.path: entry for entry in self.files}

    @property
    def self_sha256(self) -> str:
        """Hash of the canonical manifest without this field; the checkpoint's identity."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    def to_bytes(self) -> bytes:
        """Content of manifest.json; raises InvalidCheckpoint where no reader would take it."""
        parsed(type(self), canonical(record := asdict(self)), "manifest")
        return canonical({**record, "self_sha256": self.self_sha256})

    @classmethod
    def from_bytes(cls, raw: bytes, path: Path) -> Self:
        """From the content of manifest.json.

        Args:
            raw: the content.
            path: of the checkpoint, for errors.

        Raises:
            InvalidCheckpointError: it is not as it was written, or names a file that no manifest may.
            UnsupportedVersionError: it is as it was written, and says what this version does not know. Every schema has
            the
                canonical form and `self_sha256`, so that a version can tell another one from damage.
        """
        value = parse_canonical(raw, MANIFEST_FILE)
        if not isinstance(value, dict):
            raise InvalidCheckpointError("format", f"manifest: got {type(value).__name__}, allowed an object")
        claimed = value.pop("self_sha256", None)
        actual = hashlib.sha256(content := canonical(value)).hexdigest()
        if claimed != actual:
            raise InvalidCheckpointError("manifest", f"self_sha256: says {claimed}, content {actual}")
        with form_of(path, value.get("versions")):
            if value.get("schema") != SCHEMA:  # first: a later schema may have other fields
                raise InvalidCheckpointError("format", f"schema: got {value.get('schema')!r}, allowed {SCHEMA!r}")
            return parsed(cls, content, "manifest")
