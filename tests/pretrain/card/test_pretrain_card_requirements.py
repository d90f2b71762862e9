"""The version of transformers that an export needs, on its card."""

import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from pretrain.card.card import write_card
from pretrain.card.text import ESMC_NEEDS
from support.inputs.written_runs import WrittenRun
from support.places import ROOT


@pytest.mark.parametrize("is_modern", [True, False])
def test_the_card_of_an_esm_c_names_the_version_that_has_its_class(tmp_path: Path, is_modern: bool) -> None:
    root = WrittenRun().write(tmp_path / "run")
    (tmp_path / "out").mkdir()
    exported = {"step": 10, "tokens": 1000, "dtype": "float32", "contacts": ""}
    card = write_card(root, tmp_path / "out", is_modern=is_modern, **exported).read_text()  # type: ignore[arg-type]
    assert ModelCard(card).data.get("requirements") == ("transformers>=5.17" if is_modern else None)
    assert ("\nIt needs `transformers>=5.17`: earlier versions" in card) == is_modern
    assert re.search(rf"^    {re.escape(ESMC_NEEDS)}$", (ROOT / "setup.cfg").read_text(), re.M)
