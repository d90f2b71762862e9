"""What may go wrong on the way to a hub, whether another attempt may help, and how long to wait before it.

In: what a library raised. Out: `Unavailable`, which passes, or `Refused`, which does not; both in one line without
tokens. Kept: of a `Backoff`, how many attempts in a row have failed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from json import JSONDecodeError

import httpx2
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils._http import parse_ratelimit_headers

from data.safe_text import redacted
from pretrain.run.errors import OutsideError

SILENCE_S = 120.0
"""How long the hub may send nothing before a request counts as failed."""
_PASSING = frozenset({408, 409, 412, 425, 429})
"""Statuses below 500 that say "later", or "somebody was faster"."""


class PushError(OutsideError):
    """The hub did not take what was pushed."""


class Unavailable(PushError):
    """The hub cannot take it now; another attempt may help.

    Attributes:
        asked_s: how long the hub asks to wait, in seconds; 0 if it does not.
    """

    def __init__(self, message: str, asked_s: float = 0.0) -> None:
        super().__init__(message)
        self.asked_s = asked_s


class Refused(PushError):
    """The hub will not take it, however often it is asked."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time, and how to let it pass; tests have their own."""

    now: Callable[[], float] = time.monotonic
    """Seconds since some moment."""
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class Backoff:
    """Waits between attempts: each is twice as long as the one before, and as long as the hub asks."""

    clock: Clock = field(default_factory=Clock)
    first_s: float = 2.0
    most_s: float = 300.0
    asked_most_s: float = 3600.0
    """The longest wait that is granted to a hub."""
    failed: int = 0
    """Attempts in a row that have failed."""

    def wait_s(self, asked_s: float) -> float:
        """Count one more attempt that failed, and return the wait before the next, in seconds."""
        grown = min(self.first_s * 2.0 ** min(self.failed, 30), self.most_s)
        self.failed += 1
        return max(grown, min(asked_s, self.asked_most_s))

    def wait(self, asked_s: float) -> None:
        """Count one more attempt that failed, and wait."""
        self.clock.sleep(self.wait_s(asked_s))


@contextmanager
def sorted_out(repository: str) -> Iterator[None]:
    """Raise what the hub's library raises as `Unavailable` or `Refused`, and a mistake as ValueError.

    Raises:
        Unavailable: no answer, half an answer, or one that says "later".
        Refused: any other answer that is none of success.
        ValueError: the model card's metadata are wrong, a file is gone, or the library was told to stay offline.
    """
    try:
        yield
    except PushError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not isinstance(error, JSONDecodeError):
            raise ValueError(redacted(f"{repository}: {_words(error)}")) from error
        # Its threads report "Error while uploading", and what happened as the cause.
        for each in _chain(error):
            if isinstance(each, OfflineModeIsEnabled):
                raise ValueError("HF_HUB_OFFLINE is set; to push, unset it") from error
            if isinstance(each, HfHubHTTPError):
                raise _of_answer(repository, each) from error
            if isinstance(each, (httpx2.HTTPError, JSONDecodeError)):
                raise Unavailable(redacted(f"{repository}: no whole answer from the hub ({_words(each)})")) from error
            if isinstance(each, FileNotFoundError):
                raise ValueError(f"{each.filename} went away while it was pushed; push again") from error
        raise


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__


def _of_answer(repository: str, error: HfHubHTTPError) -> PushError:
    status = error.response.status_code
    words = f"{repository}: the hub answers {status}"
    if error.server_message:
        words += f", {' '.join(error.server_message.split())}"
    if status == 401:
        words += "; the token is not valid: log in with `hf auth login`, or set HF_TOKEN to one that is"
    elif status == 403:
        words += "; the token may not write there: use one with the right to, or name another repository"
    elif status == 404:
        words += "; check the name of the repository and the rights of the token"
    if status in _PASSING or status >= 500:
        return Unavailable(redacted(words), _asked_s(error))
    return Refused(redacted(words))


def _asked_s(error: HfHubHTTPError) -> float:
    """Seconds that the hub asks to wait: until its limit begins again, or Retry-After (RFC 9110, 10.2.3)."""
    headers = error.response.headers
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0 and error.response.status_code == 429:
        return float(limit.reset_in_seconds) + 1  # it counts whole seconds
    asked = headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        return float(asked)
    try:
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time()) if asked else 0.0
    except (ValueError, TypeError):
        return 0.0


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
