"""The thread that writes a checkpoint ends whatever the system refuses it."""

import os
import sys

import pytest

from pretrain.checkpoint import writer
from pretrain.checkpoint.writer import Write


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has turns of its own on Linux")
def test_a_save_ends_where_its_thread_may_not_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(*which: int) -> None:
        asked.append(which)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refused)
    monkeypatch.setattr(writer, "_SMALL", 0)
    write = Write(lambda _: "written", 1)
    assert write.wait(5)
    assert (write.result, write.error, len(asked)) == ("written", None, 1)
