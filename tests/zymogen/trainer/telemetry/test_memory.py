"""The memory that this process is said to have used."""

import pytest
import torch

from zymogen.trainer.telemetry.memory import most_bytes


@pytest.mark.slow
def test_what_this_process_used_at_most() -> None:
    before = most_bytes(torch.device("cpu"))
    held = torch.ones(before // 4 + 50_000_000)  # as much again and 200 MB, touched
    assert most_bytes(torch.device("cpu")) >= before + 150e6
    del held
