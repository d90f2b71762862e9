"""System calls that the kernel refuses, so that a program meets a disk's error where it would: at the call itself.

In: a call and an error. Out: nothing. Kept: a seccomp filter of this thread, which lasts until the thread ends.
"""

import ctypes
import platform

_NUMBERS = {"x86_64": {"fsync": 74}, "aarch64": {"fsync": 82}}
_NO_NEW_PRIVILEGES, _SECCOMP, _BY_FILTER = 38, 22, 2
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x0005_0000, 0x7FFF_0000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


def refuse(call: str, error: int) -> bool:
    """Have the kernel answer every later `call` of this thread with `error`; False where it takes no filters."""
    number = _NUMBERS.get(platform.machine(), {}).get(call)
    if number is None:
        return False
    steps = (_Instruction * 4)(
        _Instruction(_LOAD_NUMBER, 0, 0, 0),
        _Instruction(_IF_EQUAL, 0, 1, number),
        _Instruction(_RETURN, 0, 0, _REFUSE | error),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    filters = _Filter(len(steps), steps)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero):
        return False
    return libc.prctl(_SECCOMP, ctypes.c_ulong(_BY_FILTER), ctypes.byref(filters), zero, zero) == 0
