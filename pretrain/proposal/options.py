"""What was typed: sources, settings and a time, from which a recipe is chosen.

In: words of the command line. Out: which settings were given, the run directory, the words that give the same again.
Kept: nothing.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from zymogen.settings.section import expanded
from zymogen.settings.toml_file import overridden

_CLUSTERING = "data.split_identity"
_MOST_SOURCES = 20
"""Sources of a command that is shown."""


@dataclass(frozen=True, slots=True)
class ProposalOptions:
    """What was typed."""

    sources: tuple[str, ...]
    overrides: tuple[str, ...]
    budget_s: float | None
    """None for the default."""

    @property
    def settings(self) -> list[str]:
        """The overrides that say something: `none` leaves a choice to the rules, as if the setting was not given.

        `data.split_identity=none` is an answer: no clustering.
        """
        last = {_of(override): override for override in self.overrides}
        free = {name for name, override in last.items() if name != _CLUSTERING and not list(_flat([override]))}
        return [override for override in self.overrides if _of(override) not in free]

    @property
    def given(self) -> dict[str, Any]:
        """Dotted name of each setting that was given, also as part of a table -> its value.

        `data.split_identity` may be None, as `settings` says; no other is.
        """
        settings = self.settings
        return {**dict.fromkeys({_CLUSTERING} & set(map(_of, settings))), **dict(_flat(settings))}

    @property
    def directory(self) -> str:
        """The run directory: as given, or named after the first source."""
        return str(expanded(self.given.get("run.directory")) or f"runs/{_name(self.sources)}")

    def words(self) -> str:
        """What to type after the program's name to have the same.

        Of many sources, as a shell makes of a pattern, there are the first ones and the number of the others.
        """
        time = [] if self.budget_s is None else ["--minutes", f"{self.budget_s / 60:g}"]
        sources = self.sources
        if (more := len(sources) - _MOST_SOURCES) > 0:
            sources = (*sources[:_MOST_SOURCES], f"[and {more:,} more]")
        return shlex.join([*sources, *self.overrides, *time])


def _of(override: str) -> str:
    return override.partition("=")[0]


def _flat(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all settings that overrides give."""
    tables = [("", overridden({}, overrides))]
    for prefix, table in tables:  # grows
        tables += ((f"{prefix}{key}.", value) for key, value in table.items() if isinstance(value, dict))
        yield from ((f"{prefix}{key}", value) for key, value in table.items() if not isinstance(value, dict))


def _name(sources: Sequence[str]) -> str:
    """A name for the runs on these sources: the first file's, without folders and suffixes; a pattern's folder's."""
    from data.sources.formats import stem_of

    path = PurePosixPath(re.sub(r"[?#].*$", "", sources[0]))
    stem = path.parent.name if re.search(r"[*\[]", path.name) and path.parent.name else path.name
    stem = stem_of(stem)
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"
    name = f"{name}_run" if name == "stores" else name  # runs/stores is where token stores are kept
    return f"{name}_and_{len(sources) - 1}_more" if len(sources) > 1 else name
