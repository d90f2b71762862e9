"""What differs between a checkpoint and the start that continues from it is a table."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zymogen.trainer import attempt
from zymogen.trainer.attempt import describe_changes
from zymogen.trainer.checkpoint.load import verify


def engine(**other: Any) -> Any:
    """As the one that wrote the checkpoints of `two`, but for these."""
    return SimpleNamespace(**({"world_size": 1, "name": "single", "precision": "no"} | other))


def test_nothing_is_said_where_nothing_differs(two: Path) -> None:
    assert describe_changes(None, engine(world_size=5)) == []
    assert describe_changes(verify(two / "step-000000004"), engine()) == []


def test_only_what_differs_is_in_the_table(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = verify(two / "step-000000004")
    assert describe_changes(checkpoint, engine(world_size=12, name="ddp")) == [
        "since step 4  in the checkpoint  in this run",
        "processes     1                  12",
        "engine        single             ddp",
        "order of samples and tokens of a step: as before; gradients: added in another order, which changes last bits; "
        "speeds before step 4 are no measure for those after it",
    ]
    monkeypatch.setattr(attempt, "versions", lambda: {"torch": "9.1", "more": "1"})
    width = max(len("in the checkpoint"), len(torch.__version__))
    assert describe_changes(checkpoint, engine(precision="bf16")) == [
        f"since step 4  {'in the checkpoint':{width}}  in this run",
        f"precision     {'no':{width}}  bf16",
        f"torch         {torch.__version__:{width}}  9.1",
        "precision: bf16 from here on; up to step 4 it was no: to keep that, launch with --mixed_precision no",
    ]
