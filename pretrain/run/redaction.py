"""Text without what must not be read by others: tokens, passwords in URLs, signatures of upload addresses.

In: a message, which may quote a URL, a header or the command line. Out: the same message without them. Kept: nothing.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from huggingface_hub import constants

HIDDEN = "(hidden)"
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9_-]+")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic)\s+[^\s'\",;]+", re.I)
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"(https?://[^\s?'\"<>]*)\?[^\s'\"<>]*", re.I)


def redacted(text: str) -> str:
    """The text without the tokens of this process, anything like a token, and users and queries of URLs."""
    for token in _tokens():
        for written in {token, quote(token, safe="")}:
            text = text.replace(written, HIDDEN)
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _QUERY.sub(rf"\1?{HIDDEN}", text)
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def _tokens() -> list[str]:
    """The tokens that this process could send, the longest first."""
    found = [os.environ.get(name, "").strip() for name in _VARIABLES]
    with suppress(OSError, UnicodeDecodeError):
        found.append(Path(constants.HF_TOKEN_PATH).read_text().strip())
    return sorted({token for token in found if len(token) > 3}, key=len, reverse=True)
