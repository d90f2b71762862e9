"""Attempts to reach a server that fails: how many, after which waits, and what is said about them.

In: what a library raised. Out: whether another attempt may help, its wait, and words for a message. Kept, while the
process lives: which hosts have answered, and what was said on standard error.
"""

import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

ATTEMPTS = 5
"""In a row, without a byte in between."""
FIRST_WAIT_S = 2.0
"""Before the first of them; each wait is twice the one before it, less up to a half, so that not all come at once."""
MOST_WAIT_S = 120.0
"""The longest that a server may ask for (Retry-After)."""
SILENCE_S = 120.0
"""How long a server may send nothing."""
sleep: Callable[[float], None] = time.sleep
"""How it waits."""

WEB = ("http://", "https://")

_TOLD_S = 4.0
"""A wait from here on is told."""
_jitter = random.Random()
_answered: set[str] = set()
"""Hosts that have answered: one that then refuses a connection is likely to come back, and its name is no mistake."""
_told: set[str] = set()


class Attempts:
    """Attempts in a row to reach a file."""

    def __init__(self, location: str) -> None:
        self.made = 0
        self._location = location

    def may_help(self, error: Exception) -> bool:
        """Whether another attempt may end better."""
        cause = _cause(error)
        status = getattr(cause, "status", None)
        if isinstance(status, int) and status:
            answered(self._location)
            passing = status >= 500 or status in (408, 416, 425, 429)
        elif self._location.startswith(WEB):
            passing = self._is_passing(cause)
        else:
            passing = not isinstance(cause, (FileNotFoundError, PermissionError))
        return passing and self.made < ATTEMPTS

    def _is_passing(self, cause: BaseException) -> bool:
        import aiohttp

        if isinstance(cause, (aiohttp.InvalidURL, aiohttp.ClientConnectorCertificateError, FileNotFoundError)):
            return False
        if isinstance(cause, aiohttp.ClientConnectorError) and urlsplit(self._location).netloc not in _answered:
            return False  # a name or port that is nobody's, more likely than a server that is away
        return isinstance(cause, (aiohttp.ClientError, OSError))

    def wait(self, error: Exception, happened: str) -> None:
        """Wait before the next attempt, and tell of a long wait."""
        asked = _asked_s(_cause(error))
        wait_s = FIRST_WAIT_S * 2**self.made * (1 - _jitter.random() / 2)
        wait_s = min(max(wait_s, asked), MOST_WAIT_S) if asked else wait_s
        self.made += 1
        if wait_s >= _TOLD_S:
            _tell(
                f"{self._location}: {happened} ({said(error)}); waiting {wait_s:.0f} s, then trying again "
                f"({self.made} of {ATTEMPTS})"
            )
        sleep(wait_s)


def answered(location: str) -> None:
    """Take note that the host of a URL is there."""
    _answered.add(urlsplit(location).netloc)


def _cause(error: Exception) -> BaseException:
    """What it was: fsspec calls everything that keeps it from a web page "not found", and a silence its own."""
    return error.__cause__ or error if isinstance(error, (FileNotFoundError, TimeoutError)) else error


def _asked_s(cause: BaseException) -> float:
    """Seconds that a server asks to wait (RFC 9110, 10.2.3); 0 if it does not."""
    asked = (getattr(cause, "headers", None) or {}).get("Retry-After", "")
    try:
        if asked.isdecimal():
            return float(asked)
        return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()) if asked else 0.0
    except (ValueError, TypeError):
        return 0.0


def said(error: Exception) -> str:
    """What a library raised, in plain words where there are some."""
    cause = _cause(error)
    if status := getattr(cause, "status", 0):
        return f"{status} {getattr(cause, 'message', '')}".strip()
    if type(cause).__name__ == "SocketTimeoutError":
        return f"nothing came for {SILENCE_S:.0f} s"
    if type(cause).__name__ in ("ClientPayloadError", "ServerDisconnectedError", "ConnectionResetError"):
        return "the connection was lost"
    return " ".join(str(cause).split()) or type(cause).__name__


def unreachable(location: str, error: Exception, num_attempts: int) -> ValueError:
    """The error where nothing was read yet, after so many attempts more than the first."""
    cause = _cause(error)
    if isinstance(error, FileNotFoundError) and (cause is error or getattr(cause, "status", 0) == 404):
        return ValueError(f"{location}: no such file; check data.sources")
    tried = f", also after {num_attempts} more attempts" if num_attempts else ""
    return ValueError(
        f"{location}: cannot be reached: {said(error)}{tried}; check the address, network and credentials"
    )


def tell_once(location: str, text: str) -> None:
    """Say something of a source on standard error; once, whatever it is."""
    if location not in _told:
        _told.add(location)
        _tell(f"{location}: {text}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
