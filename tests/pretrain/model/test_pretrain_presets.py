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
from pretrain.recipe import Recipe
from support.places import ROOT
from zymogen.settings.toml_file import documented


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


def test_help_fits_three_screens_and_a_section_has_its_own(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 72
    assert max(map(len, shown)) <= 80
    with pytest.raises(SystemExit) as left:
        main(["--help-settings", "data.mask"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^  ([a-z_.]+)$", shown, re.M) == [
        name for name, _ in documented(Recipe) if "data.mask." in name
    ]
    assert main(["--help-settings", "data.masks"]) == 78
    assert "--help-settings is 'data.masks'; the nearest is 'data.mask', allowed are 'run'" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    program = (
        "import sys; from pretrain.__main__ import _parser; _parser().format_help(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
