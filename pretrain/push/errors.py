"""What may go wrong on the way to a hub, whether another attempt may help, and how long to wait before it.

In: what a library raised. Out: `HubUnavailableError`, which passes, or `HubRefusedError`, which does not; both in one
line without tokens. Kept: nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # it is found when asked for

from zymogen.console.safe_text import redacted
from zymogen.processes.errors import ExternalError

SILENCE_S = 120.0
"""How long the hub may send nothing before a request counts as failed."""
LONGEST_WAIT_S = 300.0
LONGEST_ASKED_S = 3600.0
"""The longest wait that is granted to a hub."""
_PASSING = frozenset({408, 409, 412, 425, 429})
"""Statuses below 500 that say "later", or "somebody was faster"."""
_REMEDIES = {
    401: "; the token is not valid: log in with `hf auth login`, or set HF_TOKEN to one that is",
    403: "; the token may not write there: use one with the right to, or name another repository",
    404: "; check the name of the repository and the rights of the token",
}


class PushError(ExternalError):
    """The hub did not take what was pushed."""


class HubUnavailableError(PushError):
    """The hub cannot take it now; another attempt may help.

    Attributes:
        asked_s: how long the hub asks to wait, in seconds; 0 if it does not.
    """

    def __init__(self, message: str, asked_s: float = 0.0) -> None:
        super().__init__(message)
        self.asked_s = asked_s


class HubRefusedError(PushError):
    """The hub will not take it, however often it is asked."""


class TagExistsError(ValueError):
    """A tag is at a commit that holds something else."""


def wait_s(failed: int, asked_s: float) -> float:
    """Seconds to wait after `failed` attempts in a row: doubled each time, and as long as the hub asks."""
    return max(min(2.0 ** min(failed, 30), LONGEST_WAIT_S), min(asked_s, LONGEST_ASKED_S))


@contextmanager
def classify_error(repository: str) -> Iterator[None]:
    """Raise what the hub's library raises as `HubUnavailableError` or `HubRefusedError`, and a mistake as ValueError.

    Raises:
        HubUnavailableError: no answer, half an answer, or one that says "later".
        HubRefusedError: any other answer that is none of success.
        ValueError: the model card's metadata are wrong, a file is gone, or the library was told to stay offline.
    """
    try:
        yield
    except (TagExistsError, PushError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not isinstance(error, JSONDecodeError):
            raise ValueError(redacted(f"{repository}: {one_line(error)}")) from error
        # Its threads report "Error while uploading", and what happened as the cause.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OfflineModeIsEnabled):
                raise ValueError("HF_HUB_OFFLINE is set; to push, unset it") from error
            if isinstance(cause, HfHubHTTPError):
                raise _of_answer(repository, cause) from error
            if isinstance(cause, (httpx2.HTTPError, JSONDecodeError)):
                said = f"{constants.ENDPOINT}: {one_line(cause)}"
                raise HubUnavailableError(redacted(f"{repository}: no whole answer from the hub ({said})")) from error
            if isinstance(cause, FileNotFoundError):
                raise ValueError(f"{cause.filename} went away while it was pushed; push again") from error
            cause = cause.__cause__
        raise


def one_line(error: BaseException) -> str:
    """The message of an error in one line, or its class."""
    return " ".join(str(error).split()) or type(error).__name__


def _of_answer(repository: str, error: HfHubHTTPError) -> PushError:
    status = error.response.status_code
    said = f", {' '.join(error.server_message.split())}" if error.server_message else ""
    message = redacted(f"{repository}: the hub answers {status}{said}{_REMEDIES.get(status, '')}")
    if status in _PASSING or status >= 500:
        return HubUnavailableError(message, _asked_s(error.response.headers))
    return HubRefusedError(message)


def _asked_s(headers: Mapping[str, str]) -> float:
    """Seconds that the hub asks to wait: until its limit begins again, or the seconds of Retry-After."""
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds + 1.0  # it counts whole seconds
    asked = headers.get("Retry-After", "").strip()
    return float(asked) if asked.isdecimal() else 0.0
