"""Standard streams that can be written: whatever is closed, encoded in ASCII or read by nobody, a command works.

In: the streams that this process was started with. Out: `sys.stdin`, `sys.stdout` and `sys.stderr`. Kept: nothing.
"""

import codecs
import errno
import io
import os
import sys
from typing import Any

_NOBODY_READS = (errno.EPIPE, errno.EIO)
"""Errors of writing where the reader of a pipe, or the terminal, is gone."""


def use_standard_streams(*, outlives_reader: bool) -> None:
    """Replace closed streams by the null device, and escape what a stream's encoding has no character for.

    Args:
        outlives_reader: whether the command continues, without output, where nobody reads its output any longer.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # or the next file that is opened would be a stream
        os.set_inheritable(opened, True)
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            # File names that are not UTF-8 are written as they are.
            is_utf_8 = codecs.lookup(stream.encoding).name == "utf-8" and name == "stdout"
            errors = "surrogateescape" if is_utf_8 else "backslashreplace"
            stream.reconfigure(errors=errors)
            if outlives_reader and stream is getattr(sys, f"__{name}__"):
                raw = io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False))
                buffering = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
                setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, errors, **buffering))


class _Outliving(io.FileIO):
    """A stream whose reader may leave."""

    def write(self, data: Any, /) -> int:
        """Write, or drop the data and all that follow if nobody reads them."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)
