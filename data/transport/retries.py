"""Errors of sources that can be read no further, and retries of requests to a server.

In: the exception that a library raised. Out: a wait before the next attempt, or the error that ends the attempts. The
class of the error tells whether what was read before is still valid; `StreamError` itself is also raised for local
files and damaged archives. Kept, while the process lives: the hosts that have answered, and messages that were printed
once.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Self
from urllib.parse import urlsplit

from zymogen.console.safe_text import log


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
_IN_WORDS = {
    "ReadTimeout": f"nothing came for {SILENCE_S:.0f} s",
    **dict.fromkeys(("ReadError", "RemoteProtocolError", "ConnectionResetError"), "the connection was lost"),
}
"""Text for some classes of errors, in place of their own."""
_jitter = random.Random()
_answered: set[str] = set()
"""Hosts that have answered. If one of them then refuses a connection, its name is right and it is likely to return."""


def retry_delay(location: str, error: Exception, number: int, happened: str = "") -> None:
    """Wait before attempt `number`, which counts from 1, and report a long wait.

    Args:
        location: the source.
        error: what a library raised.
        number: of the attempt.
        happened: where reading broke off; empty if nothing was read yet.

    Raises:
        ValueError: it cannot be reached.
        ConnectionLostError: it cannot be reached any more.
    """
    if number > ATTEMPTS or not _may_pass(location, error, happened):
        raise refusal(location, error, number - 1, happened) from error
    own_s = FIRST_WAIT_S * 2 ** (number - 1) * (1 - _jitter.random() / 2)
    wait_s = min(max(own_s, _asked_s(error)), MOST_WAIT_S)
    if wait_s >= _TOLD_S:
        log(
            f"{location}: {happened or 'cannot be reached'} ({_said(error)}); waiting {wait_s:.0f} s, then trying "
            f"again ({number} of {ATTEMPTS})"
        )
    sleep(wait_s)


def refusal(location: str, error: Exception, num_attempts: int = 0, happened: str = "") -> ValueError:
    """The error of a file that cannot be reached after `num_attempts` more attempts than the first."""
    if happened:
        tried = f", and {num_attempts} attempts to continue failed" if num_attempts else ""
        remedy = f"{_said(error)}{tried}; start again when it can be reached, the same command continues"
        return ConnectionLostError(location, happened, remedy)
    if _status(error) == 404 or (isinstance(error, FileNotFoundError) and not error.__cause__):
        return ValueError(f"{location}: no such file; check data.sources")
    tried = f", also after {num_attempts} more attempts" if num_attempts else ""
    return ValueError(
        f"{location}: cannot be reached: {_said(error)}{tried}; check the address, network and credentials"
    )


def retrying(location: str) -> None:
    """Note that the host of a URL exists."""
    _answered.add(urlsplit(location).netloc)


@cache
def log_once(location: str, text: str) -> None:
    """Print a message about a source on standard error, each once."""
    log(f"{location}: {text}")


def _may_pass(location: str, error: Exception, happened: str) -> bool:
    """Whether another attempt may succeed."""
    if not location.startswith(WEB):
        return bool(happened) and not isinstance(error, (FileNotFoundError, PermissionError))
    import httpx2

    if status := _status(error):
        return status >= 500 or status in (408, 416, 425, 429)
    if isinstance(error, httpx2.ConnectError) and urlsplit(location).netloc not in _answered:
        return False  # the name or port is probably wrong, rather than the server away for a moment
    return isinstance(error, (httpx2.TransportError, OSError)) and not isinstance(error, httpx2.UnsupportedProtocol)


def _status(error: Any) -> int:
    """The status of a web server's answer; 0 for another error."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def _asked_s(error: Any) -> float:
    """Seconds that a server asks to wait (RFC 9110, 10.2.3); 0 if it does not."""
    asked = error.response.headers.get("Retry-After", "") if _status(error) else ""
    if asked.isdecimal():
        return float(asked)
    try:
        return (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def _said(error: Any) -> str:
    """What a library raised, in plain words where we have some."""
    if status := _status(error):
        return f"{status} {error.response.reason_phrase}".strip()
    cause = error.__cause__ or error
    return _IN_WORDS.get(type(error).__name__) or " ".join(str(cause).split()) or type(cause).__name__
