"""Attempts to reach a server that fails: how many, after which waits, and what is printed about them.

In: the exception that a library raised. Out: whether another attempt may help, its wait, and words for a message. Kept,
while the process lives: which hosts have answered, and what was printed on standard error.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from data.safe_text import tell

ATTEMPTS = 5
"""How many attempts are made in a row without receiving a byte."""
FIRST_WAIT_S = 2.0
"""The wait before the first attempt. It doubles with each attempt; up to half of it is left out at random, so that
clients that failed together do not return together."""
MOST_WAIT_S = 120.0
"""The longest wait that is granted to a server (Retry-After)."""
SILENCE_S = 120.0
"""How long a server may send nothing."""
sleep: Callable[[float], None] = time.sleep
"""The function that waits; tests replace it."""

WEB = ("http://", "https://")

_TOLD_S = 4.0
"""A wait of this length or more is reported."""
_jitter = random.Random()
_answered: set[str] = set()
"""Hosts that have answered. If one of them then refuses a connection, its name is right and it is likely to return."""
_told: set[str] = set()


class Attempts:
    """Attempts in a row to reach a file."""

    def __init__(self, location: str) -> None:
        self.made = 0
        self._location = location

    def may_help(self, error: Exception) -> bool:
        """Whether another attempt may succeed."""
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
            return False  # the name or port is probably wrong, rather than the server away for a moment
        return isinstance(cause, (aiohttp.ClientError, OSError))

    def wait(self, error: Exception, happened: str) -> None:
        """Wait before the next attempt, and report a long wait."""
        asked = _asked_s(_cause(error))
        wait_s = FIRST_WAIT_S * 2**self.made * (1 - _jitter.random() / 2)
        wait_s = min(max(wait_s, asked), MOST_WAIT_S) if asked else wait_s
        self.made += 1
        if wait_s >= _TOLD_S:
            tell(
                f"{self._location}: {happened} ({said(error)}); waiting {wait_s:.0f} s, then trying again "
                f"({self.made} of {ATTEMPTS})"
            )
        sleep(wait_s)


def answered(location: str) -> None:
    """Note that the host of a URL exists."""
    _answered.add(urlsplit(location).netloc)


def _cause(error: Exception) -> BaseException:
    """The exception that caused `error`: fsspec turns every failure to read a web page into FileNotFoundError."""
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
    """What a library raised, in plain words where we have some."""
    cause = _cause(error)
    if status := getattr(cause, "status", 0):
        return f"{status} {getattr(cause, 'message', '')}".strip()
    if type(cause).__name__ == "SocketTimeoutError":
        return f"nothing came for {SILENCE_S:.0f} s"
    if type(cause).__name__ in ("ClientPayloadError", "ServerDisconnectedError", "ConnectionResetError"):
        return "the connection was lost"
    return " ".join(str(cause).split()) or type(cause).__name__


def unreachable(location: str, error: Exception, num_attempts: int) -> ValueError:
    """The error of a file of which nothing was read yet, after `num_attempts` more attempts than the first."""
    cause = _cause(error)
    if isinstance(error, FileNotFoundError) and (cause is error or getattr(cause, "status", 0) == 404):
        return ValueError(f"{location}: no such file; check data.sources")
    tried = f", also after {num_attempts} more attempts" if num_attempts else ""
    return ValueError(
        f"{location}: cannot be reached: {said(error)}{tried}; check the address, network and credentials"
    )


def tell_once(location: str, text: str) -> None:
    """Print a message about a source on standard error; only the first message of each source is printed."""
    if location not in _told:
        _told.add(location)
        tell(f"{location}: {text}")
