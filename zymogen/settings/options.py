"""The table `options` of a section: settings of a class of the user's, checked when that class is loaded.

In: the section's settings, its class. Out: the options as the class's `Options`. Kept: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zymogen.settings.extension import is_external
from zymogen.settings.section import Section, require


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions(Section):
    """The options of a class that has none."""

    section: ClassVar = "options"


def require_options(section: str, name: str, options: Mapping[str, Any]) -> None:
    """Refuse options where a section names a class of ours; nothing is imported.

    Raises:
        ValueError: there are options, which nothing would read.
    """
    said = f"only a class of your own reads it, and {section}.name is {name!r}"
    require(is_external(name) or not options, f"{section}.options", options, said)


def checked_options(section: str, kind: Any, settings: Any) -> Section:
    """Return the options of a section as the `Options` of the class that it names.

    Raises:
        ValueError: an option is unknown or not allowed.
    """
    if not is_external(settings.name):
        return NoOptions()
    from zymogen.settings.toml_file import check  # which imports pydantic: a bare GPU machine lacks it

    found: Section = check(kind.Options, settings.options, f"{section}.options")
    return found
