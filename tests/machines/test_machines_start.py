"""What is tried at a start, so that it does not fail at the end; and what is still said there."""

from pathlib import Path

import pytest

from support.other_machines import Row, table
from support.places import ROOT
from zymogen.processes.errors import StorageError
from zymogen.trainer.job import Job, publish
from zymogen.trainer.run.directory import RunDirectory

BROKEN = "raise OSError('libcudart.so.11.0: cannot open shared object file')\n"


def broken_transformers(folder: Path) -> None:
    (folder / "libraries/transformers").mkdir(parents=True)
    (folder / "libraries/transformers/__init__.py").write_text(BROKEN)


ROWS = [
    Row(
        fault=16,
        situation="transformers that cannot be imported",
        slow=True,
        prepare=broken_transformers,
        environment={"PYTHONPATH": f"{{folder}}/libraries:{ROOT}"},
        words=("-m", "pretrain", "tiny.toml"),
        status=78,
        says=(r"error: the export cannot be made at the end of the run: .*OSError\(.libcudart",),
        never=("Traceback", "step 1"),
    ),
    Row(
        fault=16,
        situation="transformers without docstrings",
        slow=True,
        environment={"PYTHONOPTIMIZE": "2"},
        words=("-m", "pretrain", "tiny.toml"),
        status=78,
        says=(r"error: the export cannot be made at the end of the run: .*leave PYTHONOPTIMIZE=2 out",),
        never=("Traceback", "step 1"),
    ),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


class _Failing(Job):  # type: ignore[type-arg]
    def __init__(self, error: Exception) -> None:
        self.error = error

    def publish(self, run: RunDirectory) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("no module named tokenizers"), r"ImportError\(.no module named tokenizers.\); mend that"),
        (ValueError("weights are NaN"), r"not exported: ValueError\(.weights are NaN.\); mend that"),
        (OSError(5, "Input/output error"), r"OSError\(5, .Input/output error.\); mend that"),
    ],
)
def test_failed_export_says_that_the_model_is_trained(error: Exception, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path} is trained and .*{said}.* exports it without training: \S"):
        publish(_Failing(error), RunDirectory(tmp_path))


def test_storage_that_fails_at_the_export_has_its_own_words(tmp_path: Path) -> None:
    error = StorageError(tmp_path, "full", "free space")
    with pytest.raises(StorageError, match="full; free space"):
        publish(_Failing(error), RunDirectory(tmp_path))
