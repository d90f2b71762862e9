"""Text that is safe to show: a terminal obeys nothing in it.

In: a message, which may quote a file's name or its content. Out: the same message. Kept: nothing.
"""

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal may obey, and marks that change the direction of text; tabs and ends of lines stay."""


def printable(text: str) -> str:
    """The text with control characters escaped, as Python writes them in a string."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
