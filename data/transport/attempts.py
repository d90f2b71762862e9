"""Attempts to reach a server that fails: whether another may help, its wait, and what is printed about it.

In: the exception that a library raised. Out: whether another attempt may help, its wait, and words for a message. Kept,
while the process lives: which hosts have answered, and what was printed once.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
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


def is_passing(location: str, error: Exception) -> bool:
    """Whether another attempt may succeed."""
    cause = _cause(error)
    status = getattr(cause, "status", None)
    if isinstance(status, int) and status:
        answered(location)
        return status >= 500 or status in (408, 416, 425, 429)
    if not location.startswith(WEB):
        return not isinstance(cause, (FileNotFoundError, PermissionError))
    import aiohttp

    if isinstance(cause, aiohttp.ClientConnectorError) and urlsplit(location).netloc not in _answered:
        return False  # the name or port is probably wrong, rather than the server away for a moment
    lasting = (aiohttp.InvalidURL, aiohttp.ClientConnectorCertificateError, FileNotFoundError)
    return isinstance(cause, (aiohttp.ClientError, OSError)) and not isinstance(cause, lasting)


def wait(location: str, error: Exception, happened: str, number: int) -> None:
    """Wait before attempt `number`, which counts from 1, and report a long wait."""
    own_s = FIRST_WAIT_S * 2 ** (number - 1) * (1 - _jitter.random() / 2)
    wait_s = min(max(own_s, _asked_s(_cause(error))), MOST_WAIT_S)
    if wait_s >= _TOLD_S:
        tell(
            f"{location}: {happened} ({said(error)}); waiting {wait_s:.0f} s, then trying again "
            f"({number} of {ATTEMPTS})"
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
    if asked.isdecimal():
        return float(asked)
    try:
        return (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
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


@cache
def tell_once(location: str, text: str) -> None:
    """Print a message about a source on standard error, each once."""
    tell(f"{location}: {text}")
