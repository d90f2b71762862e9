"""Each way in which a start ends has one class, from the error itself and from what an older version wrote down."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from signal import Signals

import pytest
from torch.distributed import DistBackendError, DistNetworkError

from support.places import ROOT
from zymogen.command_line.command import run_and_report
from zymogen.processes.errors import CheckpointError, PeerError, StorageError
from zymogen.processes.exit_classes import CLASSES, class_of, class_of_record
from zymogen.processes.signals import Interrupted

LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"
FULL = OSError(errno.ENOSPC, "No space left on device")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "name", "status"),
    [
        (RuntimeError("out of memory"), "error", 70),
        (KeyError("missing"), "error", 70),
        (OSError(errno.EIO, "Input/output error"), "error", 70),
        (CheckpointError(Path("c"), "none is whole", "restore one"), "error", 70),
        (CheckpointError(Path("r"), "rank 1 differs", "start again"), "error", 70),
        (PeerError("rank 0 failed: ValueError: x"), "peer", 71),
        (RuntimeError(LOST), "peer", 71),
        (DistBackendError("NCCL error: remote process exited"), "peer", 71),
        (DistNetworkError("The client socket has timed out"), "peer", 71),
        (StorageError(Path("c"), "full", "free space"), "storage", 74),
        (FULL, "storage", 74),
        (caused(ValueError("x: the disk is full"), FULL), "storage", 74),
        (ValueError("schedule.total_tokens is -1"), "input", 78),
        (FloatingPointError("the run diverged"), "input", 78),
        (PermissionError(errno.EACCES, "Permission denied"), "input", 78),
        (KeyboardInterrupt(), "interrupted", 130),
        (Interrupted(Signals.SIGINT), "interrupted", 130),
        (Interrupted(Signals.SIGTERM), "preempted", 75),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_an_error_has_its_class_and_ends_a_command_with_its_status(
    error: BaseException, name: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def body() -> bool:
        raise error

    found = class_of(error)
    assert (found.name, found.status) == (name, status)
    assert run_and_report(lambda: [body(), None][1]) == run_and_report(body) == status
    said = capfd.readouterr().err
    assert ("Traceback" in said) == (status in (70, 71) and not isinstance(error, CheckpointError))


def test_a_comparison_answers_with_0_or_1() -> None:
    assert (run_and_report(lambda: False), run_and_report(lambda: True), run_and_report(lambda: None)) == (0, 1, 0)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        *(("finished", 0), ("error", 70), ("peer", 71), ("storage", 74), ("preempted", 75), ("input", 78)),
        *(
            ("interrupted", 130),
            ("stopped by SIGINT at step 5", 130),
            ("stopped by SIGTERM before the first step", 75),
        ),
        *((None, 75), ("of a later version", 70)),
    ],
)
def test_records_of_any_version_have_a_class(end: str | None, status: int) -> None:
    assert class_of_record(end).status == status


def test_statuses_and_names_are_each_one_classes() -> None:
    assert [each.status for each in CLASSES] == [0, 70, 71, 74, 75, 78, 130]
    assert len({each.name for each in CLASSES}) == len(CLASSES)
    page = (ROOT / "docs/runs.md").read_text()
    for each in CLASSES:
        assert f"| {each.status} |" in page, each.name


def test_it_is_known_before_torch_is() -> None:
    program = "import sys, zymogen.processes.exit_classes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=dict(os.environ)).returncode == 0
