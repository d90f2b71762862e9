"""Why a faster path is not taken, and what to type so that it is.

In: two phrases. Out: an `UnsupportedFeature`, which every choice of how to compute returns. Nothing is kept.
"""

from typing import NamedTuple


class UnsupportedFeature(NamedTuple):
    """Why something is not taken here."""

    reason: str
    """The reason, as a clause that follows "because"."""
    remedy: str
    """What the user can type or install; a clause of its own."""

    def __str__(self) -> str:
        """Both, as they are printed at the start of a run."""
        return f"{self.reason}; {self.remedy}"


def gist(error: BaseException) -> str:
    """One line of an error that may fill a screen: its kind and the line that names what is wrong."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    said = next((line for line in lines if "error:" in line), lines[0] if lines else "")
    return f"{type(inner).__name__}: {said}"[:300].removesuffix(": ")
