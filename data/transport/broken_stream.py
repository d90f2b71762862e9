"""Errors of a source that can be read no further, by what that says of what was read before.

In: nothing; these are the types. Kept: nothing.
"""

from typing import Self


class BrokenStream(ValueError):
    """A source that can be read no further.

    Args:
        location: the source.
        happened: what is wrong.
        remedy: why, or what to do.
    """

    def __str__(self) -> str:
        location, happened, remedy = self.args
        return f"{location}: {happened}: {remedy}"

    def at(self, place: str) -> Self:
        """The same error, for a reader that knows how far it came: `place` reads well after a comma."""
        location, happened, remedy = self.args
        return type(self)(location, f"{happened}, {place}", remedy)


class BrokenOff(BrokenStream):
    """The connection to a source was lost for good. What was read before is as good as ever."""


class Changed(BrokenStream):
    """A source became another one while it was read: what was read before belongs to neither."""
