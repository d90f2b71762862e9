"""The size of an encoder by its shape: the same numbers as those of a model that is built, in --help as elsewhere."""

import re
import subprocess
import sys

import pytest
import torch

from benchmarks.training import bytes_per_token, initial, packed_whole, side
from pretrain.__main__ import main
from pretrain.model.compute import configure
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, preset_table
from pretrain.model.settings import ComputeSettings
from support.places import ROOT


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_those_of_the_model_that_is_built(preset: str) -> None:
    with torch.device("meta"):
        model = MaskedLanguageModel(PRESETS[preset])
    assert PRESETS[preset].num_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("preset", ["esm2_8m", "modern_8m"])
def test_bytes_are_those_that_the_backward_pass_keeps(preset: str) -> None:
    """Counted by hooks on the tensors that autograd saves; to 5 %, as sizes differ by some."""
    model, slots = initial(preset), 16_384
    configure(model.encoder, ComputeSettings(), torch.device("cpu"), torch.bfloat16)
    counted = bytes_per_token(side(model), packed_whole, "bf16", torch.device("cpu"))
    expected = PRESETS[preset].training_bytes(slots) - PRESETS[preset].training_bytes(0)
    assert expected / slots == pytest.approx(counted, rel=0.05)
    assert PRESETS[preset].training_bytes(0) == 16 * PRESETS[preset].num_parameters


def test_help_lists_the_presets(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    rows = dict(re.findall(r"^  ((?:esm2|modern)_\w+) +(\d.*)$", said, re.M))
    assert list(rows) == list(PRESETS)
    assert rows["esm2_8m"].split() == ["6", "320", "7.5", "M", "1.2", "GB"]
    assert rows["esm2_15b"].split() == ["48", "5,120", "15,129", "M", "383", "GB"]
    assert rows["modern_600m"].split() == ["36", "1,152", "575", "M", "38.5", "GB"]
    assert all(f"  {line}\n" in said for line in preset_table())
    assert max(map(len, preset_table())) <= 100


def test_help_needs_no_torch() -> None:
    program = (
        "import sys; from pretrain.__main__ import _parser; _parser().format_help(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
