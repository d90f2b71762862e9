"""The memory that is expected for parameters, gradients and moments is what torch and DeepSpeed allocate."""

import re
from pathlib import Path
from typing import Any

import pytest

from pretrain.model.memory import state_bytes
from pretrain.model.presets import PRESETS
from support.kept_runs import CONSTANT, config
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

ALLOCATED, HELD = 0, 1
"""Figures of `held_state.say_state_bytes`."""


@pytest.mark.parametrize(
    ("engine", "processes", "bytes_a_parameter", "figure"),
    [
        pytest.param("single", 1, 16, ALLOCATED, marks=pytest.mark.prove),  # weights, gradients, two moments
        ("ddp", 2, 20, ALLOCATED),  # and the buckets in which gradients are summed
        ("fsdp2", 2, 16 / 2, HELD),
        pytest.param("hsdp", 4, 16 / 2, HELD, marks=pytest.mark.prove),
        pytest.param("zero1", 2, 8 + 12 / 2, HELD, marks=pytest.mark.prove),
        pytest.param("zero2", 2, 4 + 16 / 2, HELD, marks=pytest.mark.prove),
        ("zero3", 2, 20 / 2, HELD),  # DeepSpeed updates a copy of the weights' parts
    ],
)
def test_state_bytes_are_those_that_are_there(
    pool: RankPool, recipe_in: Any, tmp_path: Path, engine: str, processes: int, bytes_a_parameter: float, figure: int
) -> None:
    number = PRESETS["esm2_8m"].num_parameters
    assert state_bytes(number, engine, processes // 2 if engine == "hsdp" else processes) == number * bytes_a_parameter
    words = [recipe_in(tmp_path), "model.preset=esm2_8m", "data.bins_per_step=4", "schedule.total_tokens=1_300"]
    done = pool.run(processes, config(engine), [*words, CONSTANT], fault="say_state_bytes")
    assert done.status == 0, done.output
    found = [tuple(map(int, each)) for each in re.findall(r"bytes: (\d+) allocated, (\d+) held", done.output)]
    assert len(found) == processes
    if engine == "zero1":  # with the last micro-batch, gradients go to their owners
        bytes_a_parameter -= 4 / 2
    for each in found:
        assert each[figure] / number == pytest.approx(bytes_a_parameter, rel=0.03)
