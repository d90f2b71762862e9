"""Compiled kernels: a function of loops over arrays, compiled by numba where numba is there.

In: a module-level function. Out: its compiled form, or None, and then the caller does the same without: in this package
in NumPy and to the byte.
Kept: machine code, in numba's own cache beside the module or in the user's cache folder.

numba is imported when a kernel is first asked for, so that importing the data package costs nothing of it.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

SWITCH = "ZYMOGEN_COMPILED"
"""Set this environment variable to 0 to go without compiled kernels."""


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The compiled form of `function`, without the interpreter's lock; None where numba is absent or switched off."""
    if not available():
        return None
    import numba

    kernel: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return kernel


def available() -> bool:
    """Whether numba is there and not switched off."""
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
