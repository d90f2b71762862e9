r"""Text that may be shown, written and sent: without secrets, and nothing in it that a terminal obeys.

In: a message, a setting or a word of the command line, which may hold a URL, a token or a control character. Out: the
same text without secrets. Kept, while the process lives: each whole URL, for who opens it.

The query of a URL may be a signature, which is as good as a password. So settings and arguments hold URLs without it
(`redact_later`), and the reader of a URL asks for the rest (`unredacted`): what is never in a value is never written.
In its place is a hash of the parameters that are no signature: a URL that was signed again is the same source.

    https://host/x.fasta?file=3&X-Amz-Signature=ab12...   ->   https://host/x.fasta?file=3&hidden=1271cf25
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote

HIDDEN = "(hidden)"
IS_SILENT: ContextVar[bool] = ContextVar("is_silent", default=False)
"""Whether nothing is printed, as for a program that calls functions of ours."""
WHOLE: dict[str, str] = {}
"""URL as it is shown -> as it was given. A process that is started to open sources gets a copy."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal may obey, and marks that change the direction of text; tabs and ends of lines stay."""
_USER = re.compile(r"(https?://|[a-z][a-z0-9+.-]*://(?=[^/?#@\s]*:))[^/?#\s'\"<>]*@", re.I)
"""User and password; a user alone is none on the web, where it may be a token, and a name elsewhere."""
_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^\s?'\"<>]*)\?([^\s'\"<>]*[^\s'\"<>.,:;)\]}])", re.I)
_WHOLE_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^\s?'\"<>]*)\?([^'\"<>]+)", re.I)
_OPEN = frozenset(
    (
        *("sequence", "id", "config", "split", "data_files", "data_dir", "revision"),  # ours, of a table
        *("sheet", "labels", "mask", "separator", "encoding", "header_lines"),
        *("query", "format", "fields", "sort", "size", "compressed", "includeIsoform"),  # UniProt's and InterPro's
        *("file", "path", "filename", "download", "raw", "alt", "version", "versionId"),
    )
)
"""Parameters whose values are shown, unless there is a secret in them."""
_SIGNATURE = re.compile(
    r"x-(amz|goog|oss|ms|cos)-.*|signature|sig|expires|policy|key-pair-id|(aws|oss)?accesskeyid|googleaccessid|"
    r"(security-|access_|auth_?)?token|auth|api_?key|se|sp|sr|ss|st|sv|sip|spr|srt|sk\w+",
    re.I,
)
"""Parameters of a signature, by S3, Google, Azure, Alibaba and CloudFront: each time others for the same file."""
_MARK = re.compile(r"hidden=[0-9a-f]{8}")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic)\s+[^\s'\",;]+", re.I)
_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|SECRET_ACCESS_KEY|ACCOUNT_KEY)$")


def redact_later(text: str, named: str) -> str:
    """A setting or an argument without the secrets of its URLs, which `unredacted` knows from now on.

    Raises:
        ValueError: a URL holds a user or a password; the message begins with `named`.
    """
    if "://" not in text:
        return text
    if _USER.search(text):
        raise ValueError(
            f"{named}: a URL has a user or a password in it, {redacted(text)}; leave them out: credentials are read "
            "from ~/.netrc or, for an object store, from the environment, such as AWS_SECRET_ACCESS_KEY"
        )

    def shown(found: re.Match[str]) -> str:
        public = _without_secrets(found)
        if public != found[0]:
            WHOLE[public] = found[0]
        return public

    return _WHOLE_QUERY.sub(shown, text)


def unredacted(url: str) -> str:
    """The URL with the secrets that `redact_later` took away.

    Raises:
        ValueError: they were given to another process, and are nowhere.
    """
    given = _given(url)
    if is_redacted(given):
        raise ValueError(
            f"{url}: a part of this URL may be a secret, and was not written down: give the whole URL again, as "
            "data.sources=URL, data.table=URL or --data URL on the command line"
        )
    return given


def is_redacted(url: str) -> bool:
    """Whether a part of the URL was taken away by another process, so that it cannot be opened here."""
    return "://" in url and _MARK.search(_given(url)) is not None


def _given(url: str) -> str:
    for public, given in WHOLE.items():
        url = url.replace(public, given)
    return url


def redacted(text: str) -> str:
    """The text without the tokens of this process, anything like a token, and the secrets of URLs."""
    if "://" in text:
        for public, given in WHOLE.items():
            text = text.replace(given, public)
        text = _QUERY.sub(_without_secrets, _USER.sub(rf"\1{HIDDEN}@", text))
    for token in _tokens():
        for written in {token, quote(token, safe="")}:
            text = text.replace(written, HIDDEN)
    return _TOKEN.sub(HIDDEN, _AUTHORIZATION.sub(rf"\1 {HIDDEN}", text))


def printable(text: str) -> str:
    """The text with control characters escaped, as Python writes them in a string."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


@contextmanager
def silenced(*, is_silent: bool = True) -> Iterator[None]:
    """Print no message and no progress meanwhile, in this thread alone."""
    before = IS_SILENT.set(is_silent)
    try:
        yield
    finally:
        IS_SILENT.reset(before)


def log(text: str) -> None:
    """Print a message on standard error, without secrets and control characters, unless it is `silenced`."""
    if IS_SILENT.get():
        return
    print(printable(redacted(text)), file=sys.stderr, flush=True)


def log_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error with where it came from, as `sys.excepthook`."""
    log("".join(traceback.format_exception(kind, error, trace)).rstrip())


def _without_secrets(found: re.Match[str]) -> str:
    """A URL with a hash in place of the parameters that may be secrets."""
    parts = found[2].split("&")
    hidden = [part for part in parts if not _is_open(part)]
    if not hidden:
        return found[0]
    signed_for = sorted(part for part in hidden if not _SIGNATURE.fullmatch(part.partition("=")[0]))
    mark = blake2b("&".join(signed_for).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{found[1]}?{'&'.join([*(part for part in parts if part not in hidden), f'hidden={mark}'])}"


def _is_open(part: str) -> bool:
    name, _, value = part.partition("=")
    return bool(_MARK.fullmatch(part)) or (name in _OPEN and redacted(unquote(value)) == unquote(value))


def _tokens() -> list[str]:
    """The tokens that this process could send, the longest first."""
    found = [value.strip() for name, value in os.environ.items() if _VARIABLE.search(name)]
    if library := sys.modules.get("huggingface_hub.constants"):  # else nobody has read a token from its file
        with suppress(OSError, UnicodeDecodeError):
            found.append(Path(library.HF_TOKEN_PATH).read_text().strip())
    return sorted({token for token in found if len(token) > 3}, key=len, reverse=True)
