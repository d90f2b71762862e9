"""The memory that is expected, against figures by hand, and what a process is said to use."""

import pytest
import torch

from pretrain.model.presets import PRESETS
from pretrain.telemetry.memory import activation_bytes, most_bytes, process_bytes, state_bytes, used_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("engine", "processes", "bytes_a_parameter"),
    [("single", 1, 16), ("ddp", 4, 20), ("fsdp2", 4, 4), ("zero1", 4, 11), ("zero2", 4, 8), ("zero3", 4, 4)],
)
def test_parameters_gradients_and_moments(engine: str, processes: int, bytes_a_parameter: float) -> None:
    assert state_bytes(1000, processes, engine) == 1000 * bytes_a_parameter


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


def test_what_this_process_uses() -> None:
    before = used_bytes(CPU)
    held = torch.ones(50_000_000)  # 200 MB, touched
    assert 150e6 < used_bytes(CPU) - before < 260e6
    assert most_bytes(CPU) >= before + 150e6
    assert process_bytes(CPU) >= 0.6e9
    del held
