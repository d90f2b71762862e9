"""The notebook of the documentation is a program: it is executed from its first cell to its last."""

import gzip
import json
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from support.launching import lines
from support.places import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
MOST_S = 240
MINUTES = 0.1  # of pretraining, in place of one


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


@pytest.mark.prove  # other tests run each of its commands
@pytest.mark.timeout(400)
def test_it_runs(tmp_path: Path) -> None:
    notebook = with_parameters(nbformat.read(NOTEBOOK, as_version=4), minutes=MINUTES, folder=str(tmp_path))
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=MOST_S, kernel_name="python3", resources=where).execute()
    run = tmp_path / "runs/your"
    assert lines(run / "attempts.jsonl")[-1]["exit"] == "finished"
    assert any("validation" in line for line in lines(run / "metrics.jsonl"))
    assert (run / "report.html").is_file()
    (score,) = json.loads((tmp_path / "runs/assay/scores.json").read_text())["scores"]["tasks"]
    assert score["task"] == "hydrophobic"
    assert 10 <= score["labels"] <= 48  # of one of five parts of 192
    assert pd.read_csv(tmp_path / "predictions.csv")["id"].tolist() == [f"n{n}" for n in range(20)]
    scored = pd.read_csv(tmp_path / "scored.csv")
    (column,) = [name for name in scored if name.endswith(":wt-marginal")]
    assert (scored[column] == 0).tolist() == [True, *[False] * (len(scored) - 1)]  # the wild type alone
    assert len(scored) == 1 + sum(letter != wild for wild in wild_type(tmp_path)[:20] for letter in "AGW")
    shown = notebook.cells[-2].outputs[0]["data"]["text/plain"]
    assert "nearest" in shown
    assert "600 rows" in shown


def wild_type(folder: Path) -> str:
    with gzip.open(folder / "your.fasta.gz", "rt") as file:
        return file.read().split(">")[1].partition("\n")[2].replace("\n", "")
