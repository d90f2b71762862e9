"""Errors of a source that can be read no further. Their types say whether what was read before is still valid.

In: nothing; these are the types. Kept: nothing.
"""

from typing import Self


class StreamError(ValueError):
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
        """The same error with the place that a reader had reached; `place` is written after a comma."""
        location, happened, remedy = self.args
        return type(self)(location, f"{happened}, {place}", remedy)


class ConnectionLostError(StreamError):
    """The connection to a source was lost and could not be opened again. What was read before is valid."""


class SourceChangedError(StreamError):
    """A source changed while it was read. What was read before is not valid."""
