"""The notebook of the documentation is a program: it is executed from its first cell to its last."""

import json
import time
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.places import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
MOST_S = 240
SECONDS = 8  # of pretraining, in place of a minute


def with_parameters(notebook: nbformat.NotebookNode, **values: Any) -> nbformat.NotebookNode:
    """The notebook with other values in its one cell that is tagged "parameters"."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    given = [line.partition(" = ")[0] for line in cell.source.splitlines()]
    assert given == list(values)
    cell.source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    return notebook


def test_it_is_stored_without_outputs() -> None:
    stored = json.loads(NOTEBOOK.read_text("utf-8"))
    nbformat.validate(stored)
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 8
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


def test_every_step_asserts_what_it_shows() -> None:
    source = {"".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
    for step in ("data build", "accelerate launch", "finetune.score", "finetune.embed", "pretrain.push"):
        assert any(step in cell for cell in source), step
    assert sum("assert " in cell for cell in source) >= 8


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_runs() -> None:
    notebook = with_parameters(nbformat.read(NOTEBOOK, as_version=4), seconds=SECONDS)
    begun = time.monotonic()
    NotebookClient(
        notebook, timeout=MOST_S, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    took = time.monotonic() - begun
    assert took <= MOST_S, f"took {took:.0f} s"
