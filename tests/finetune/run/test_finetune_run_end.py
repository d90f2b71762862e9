"""The end of a run that is started again: what is complete is kept, what is missing is computed."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from finetune.__main__ import main
from support.assays.small_run import write
from support.launching import run

SCRIPT = """
import gc, json, sys
from finetune import finalize, fold_predictions
from finetune.__main__ import main as started

recipe, root = sys.argv[1], finalize.Path(sys.argv[2])
real = fold_predictions.predict, finalize.page.write

def cut(*given):
    raise RuntimeError("cut off here")

def words(*more):
    gc.collect()  # a lock ends with its process: that of a command before is held by the traceback of its error
    return started([recipe, "schedule.total_tokens=2_000", *more]), (root / "scores.json").exists()

def content():
    return [json.loads((root / name).read_bytes()) for name in ("scores.json", "bundle/bundle.json")]

found = {}
finalize.page.write = cut
found["cut"] = words()
finalize.page.write = real[1]
found["continued"] = words()
fold_predictions.predict = cut
first = content()
found["complete"] = [words(), content() == first]
found["again"] = words("--again")[0]
found["other settings"] = words("split.search_pretraining=true")[0]
(root / "found.json").write_text(json.dumps(found))
"""


@pytest.mark.prove
def test_a_finished_run_computes_nothing(tmp_path: Path) -> None:
    recipe, root = write(tmp_path), tmp_path / "run"
    done = run([sys.executable, "-c", SCRIPT, str(recipe), str(root)])
    assert done.status == 0, done.output
    text = (root / "found.json").read_text()
    # Cut off while the page was drawn, scored again; then nothing was computed unless it was asked for.
    assert text == (
        '{"cut": [70, false], "continued": [0, true], "complete": [[0, true], true], "again": 70, "other settings": 70}'
    ), done.output
    said = f"{root / 'scores.json'} holds the results of these models on these labels; --again computes them once more"
    assert done.output.count(said) == 1


def test_the_split_is_audited_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*given: object, **named: object) -> None:
        raise RuntimeError("the first step")

    monkeypatch.setattr(shutil, "which", lambda name: None)  # shared words find relatives faster than MMseqs2 starts
    monkeypatch.setattr("zymogen.trainer.attempt.train", train)
    assert main([str(write(tmp_path))]) == 70
    said = capsys.readouterr()
    assert re.search(r"^Split: a random split.*; of \d+ tested sequences, 0 are also in training, and", said.out, re.M)
    assert "the first step" in said.err
