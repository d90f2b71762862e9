"""The memory that is expected: against figures by hand, counted tensors, and the same in help, proposal and start."""

from dataclasses import replace

import pytest
import torch

from benchmarks.training import bytes_per_token, initial, packed_whole, side
from pretrain.machine import Machine
from pretrain.model.compute import configure
from pretrain.model.memory import PROCESS_BYTES, activation_bytes, memory_of, state_bytes
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ComputeSettings

LAPTOP = Machine("cpu", "2 CPU cores", 1, 2, 16e9, 6e10)


@pytest.mark.parametrize(
    ("engine", "processes", "optimizer", "bytes_a_parameter"),
    [
        ("single", 1, "adamw", 16),
        ("single", 1, "muon", 12),
        ("ddp", 4, "adamw", 20),
        ("ddp", 4, "muon", 16),
        ("fsdp2", 4, "adamw", 4),
        ("zero1", 4, "adamw", 11),
        ("zero2", 4, "adamw", 8),
        ("zero3", 4, "adamw", 5),
    ],
)
def test_parameters_gradients_and_moments(
    engine: str, processes: int, optimizer: str, bytes_a_parameter: float
) -> None:
    assert state_bytes(1000, engine, processes, optimizer) == 1000 * bytes_a_parameter


def test_activations() -> None:
    shape = PRESETS["esm2_8m"]  # 6 layers, width 320
    each = {
        (kind, is_16_bit): activation_bytes(shape, 100, is_16_bit=is_16_bit, checkpointing=kind) / (100 * 320)
        for kind in ("none", "layer")
        for is_16_bit in (False, True)
    }
    # 48 bytes for a moment; under checkpointing also the layer that is computed again.
    assert each["none", False] == pytest.approx(6 * 61.7 + 48)
    assert each["none", True] == pytest.approx(6 * 34.9 + 48)
    assert each["layer", False] == pytest.approx(6 * 4.6 + 61.7 + 48)
    assert each["layer", True] == pytest.approx(6 * 4.4 + 34.9 + 48)


@pytest.mark.parametrize("preset", ["esm2_8m", "modern_8m"])
def test_activations_are_those_that_the_backward_pass_keeps(preset: str) -> None:
    """Counted by hooks on the tensors that autograd saves; to 5 %, as sizes differ by some."""
    model, shape = initial(preset), PRESETS[preset]
    configure(model.encoder, ComputeSettings(), torch.device("cpu"), torch.bfloat16)
    counted = bytes_per_token(side(model), packed_whole, "bf16", torch.device("cpu"))
    for_a_moment = 48 * shape.dim
    assert activation_bytes(shape, 1) - for_a_moment == pytest.approx(counted, rel=0.05)


def test_a_machine_gives_engine_processes_and_precision() -> None:
    shape = PRESETS["modern_8m"]
    one = memory_of(shape, 4096, LAPTOP, "muon")
    assert one.total == one.libraries + one.state + one.activations + one.saves
    assert (one.libraries, one.state) == (PROCESS_BYTES["cpu"], 12 * shape.num_parameters)
    assert one.saves == 8 * shape.num_parameters
    half = memory_of(shape, 4096, replace(LAPTOP, precision="bf16", processes=2, engine="ddp"), "adamw")
    assert half.state == 20 * shape.num_parameters
    assert half.saves == 6 * shape.num_parameters  # each of two processes writes half
    assert memory_of(shape, 4096, replace(LAPTOP, kind="cuda"), "muon").saves == 0
    assert half.activations == activation_bytes(shape, 4096, is_16_bit=True) < one.activations
    assert memory_of(shape, 4096, LAPTOP, "muon", "layer").activations < half.activations
