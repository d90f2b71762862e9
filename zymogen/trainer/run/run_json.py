"""The record of a run in run.json.

In: its content. Out: a `RunRecord` (`zymogen.settings.json_file`). Kept: nothing.
"""

from dataclasses import dataclass, field
from typing import Any

from zymogen.settings import json_file

FORMAT = "zymogen.run/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Content of run.json."""

    format: str = FORMAT
    id: str = ""
    """Number of the run for trackers, hexadecimal."""
    created: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The resolved recipe of the latest start, every field."""
    versions: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that define classes of the user's, by the settings that name them."""
    corpus: dict[str, Any] = field(default_factory=dict)
    """What `Job.description` says of the data."""
    model: dict[str, Any] = field(default_factory=dict)
    """The architecture; a continued run reads it here, not from what `model.init` names."""
    compute: list[str] = field(default_factory=list)
    """How the latest start computes: what "auto" became on its machine."""
    bins_per_forward: int | None = None
    """Bins of a forward pass, where the recipe leaves them to the machine."""
    parameters: int | None = None
    """Parameters of the model."""


def run_record(content: bytes, where: str) -> RunRecord:
    """Return the record in the bytes of run.json; `where` names it in errors.

    Raises:
        ValueError: it is no run.json of this program.
    """
    return json_file.parse(RunRecord, content, where, "record of a run", "choose another run.directory")
