"""The size of an encoder by its shape: the same numbers as those of a model that is built, in --help as elsewhere."""

import re
import subprocess
import sys

import pytest
import torch

from pretrain.__main__ import main
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.memory import preset_table
from pretrain.model.presets import PRESETS
from support.places import ROOT


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_those_of_the_model_that_is_built(preset: str) -> None:
    with torch.device("meta"):
        model = MaskedLanguageModel(PRESETS[preset])
    assert PRESETS[preset].num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_help_lists_the_presets(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    rows = dict(re.findall(r"^  ((?:esm2|modern)_\w+) +(\d.*)$", said, re.M))
    assert list(rows) == list(PRESETS)
    assert rows["esm2_8m"].split() == ["6", "320", "7.5", "M", "1.5", "GB"]
    assert rows["esm2_15b"].split() == ["48", "5,120", "15,129", "M", "387", "GB"]
    assert rows["modern_600m"].split() == ["36", "1,152", "575", "M", "39.4", "GB"]
    assert all(f"  {line}\n" in said for line in preset_table())
    assert max(map(len, preset_table())) <= 100


def test_help_needs_no_torch() -> None:
    program = (
        "import sys; from pretrain.__main__ import _parser; _parser().format_help(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
