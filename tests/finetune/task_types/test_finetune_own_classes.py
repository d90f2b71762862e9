"""A task type and a head of the user: trained, resumed, scored, predicted with, and refused where they are missing."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from finetune.__main__ import main as train
from finetune.compare.__main__ import main as compare
from finetune.export.__main__ import main as export
from finetune.predict.__main__ import main as predict
from pretrain.push.folder import finished_files
from support.assays.bundled import rows as read_rows
from support.assays.small_run import RECIPE, Rows, write
from support.jobs import fine_tuning_job
from support.kept_runs import config
from support.launching import bit_equal, end_of, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.settings import extension

EXAMPLES = ROOT / "docs/examples"
TASK = '[[tasks]]\nname = "reads"\ntype = "counts:Counts"\noptions.least = 0.05\n\n'
FORM = ("heads.form=gated:Gated", "heads.options.bias=0.5")


def counted(rows: Rows) -> Rows:
    """Every second protein has a number of reads, more with more lysine."""
    rng = np.random.default_rng(1)
    reads = [rng.poisson(np.exp(20 * row["sequence"].count("K") / len(row["sequence"]))) for row in rows]
    return [{**row, "reads": str(n) if at % 2 else ""} for at, (row, n) in enumerate(zip(rows, reads, strict=True))]


def prepared(folder: Path, change: Callable[[Rows], Rows] = counted) -> Path:
    path = write(folder, change)
    begin, end = RECIPE.index("[[tasks]]"), RECIPE.index("[split]")
    path.write_text((RECIPE[:begin] + TASK + RECIPE[end:]).format(folder=folder))
    for name in ("counts", "gated"):
        shutil.copy(EXAMPLES / f"{name}.py", folder)
    return path


def forget() -> None:
    for name in ("counts", "gated"):
        sys.modules.pop(name, None)
    extension._hash.cache_clear()


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    forget()


def refusal(capfd: pytest.CaptureFixture[str], program: Callable[[list[str]], int], *words: object) -> str:
    assert program(list(map(str, words))) == 78
    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return said


REFUSED = [
    (["tasks.reads.type=regresion"], "tasks.reads.type is 'regresion'; the nearest is 'regression', allowed are"),
    (["tasks.reads.type=nowhere:A"], "nowhere cannot be imported: ModuleNotFoundError"),
    (["tasks.reads.type=gated:Gated"], "must be a class derived from finetune.task_types.task_type.TaskType"),
    (["tasks.reads.options.lest=1"], "tasks.reads.options: there is no setting 'lest'; the nearest is 'least'"),
    (["tasks.reads.options.least=0"], "options.least is 0.0; it must be above 0"),
    (["tasks.reads.imbalance=focal"], "only a task of classes reads it, and tasks.reads.type is 'counts:Counts'"),
    (["tasks.reads.type=regression"], "tasks.reads.options is {'least': 0.05}; only a class of your own reads it"),
    (["heads.form=gatd"], "heads.form is 'gatd'; allowed are 'mlp', 'transformers', or package.module:Class"),
    (["heads.form=counts:Counts"], "must be a class derived from finetune.heads.kinds.Head"),
    (["heads.options.bias=1"], "only a class of your own reads it, and heads.form is 'mlp'"),
    ([FORM[0], "heads.options.bis=1"], "heads.options: there is no setting 'bis'; the nearest is 'bias'"),
    ([FORM[0], "tasks.reads.type=binary", "tasks.reads.options=none", "tasks.reads.level=pair"], "level 'pair'"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_recipe_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    change: Callable[[Rows], Rows] = counted
    if "tasks.reads.level=pair" in words:
        change = lambda rows: [{**row, "reads": f"1-3:{at % 2}"} for at, row in enumerate(rows)]  # noqa: E731
    assert said in refusal(capfd, train, prepared(tmp_path, change), *words)


def test_negative_count_is_refused_by_the_type(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = prepared(tmp_path, lambda rows: [{**row, "reads": "-1"} for row in rows])
    assert "column 'reads': a count is below 0; correct it" in refusal(capfd, train, path)


@pytest.mark.launch
@pytest.mark.xdist_group("finetune")
def test_killed_and_resumed_it_ends_bit_equal_and_predicts(
    pool: RankPool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        words = [prepared(folder), *FORM, "data.workers=2", "schedule.total_tokens=8_000"]
        program = fine_tuning_job.__name__
        if name == "killed":
            run = folder / "run"

            def past_a_checkpoint(run: Path = run) -> bool:
                taken = [line for line in lines(run / "metrics.jsonl") if "loss" in line]
                return len(taken) >= 6 and any(run.glob("checkpoints/step-*"))

            pool.run_and_kill(2, config("ddp"), words, past_a_checkpoint, program=program)
            program = "finetune.__main__"
        done = pool.run(2, config("ddp"), words, program=program)
        assert done.status == 0, done.output
        ended.append(end_of(folder / "run"))
    assert bit_equal(*ended)
    run = tmp_path / "killed/run"
    code = {
        setting: hashlib.sha256((EXAMPLES / f"{name}.py").read_bytes()).hexdigest()
        for setting, name in (("heads.form", "gated"), ("tasks.0.type", "counts"))
    }
    record = json.loads((run / "run.json").read_text())
    assert record["code"] == code == lines(run / "attempts.jsonl")[0]["code"]
    (scores,) = json.loads((run / "scores.json").read_text())["scores"]["tasks"]
    assert (scores["type"], scores["metric"], scores["chance"]) == ("counts:Counts", "deviance_explained", 0.0)
    assert scores["value"] < 1
    manifest = json.loads((run / "bundle/bundle.json").read_text())
    assert manifest["code"] == code

    out, table = tmp_path / "out.csv", tmp_path / "killed/assays.csv"
    said = refusal(capfd, predict, run, table, "-o", out)
    assert "counts cannot be imported: ModuleNotFoundError: No module named 'counts'" in said or "'gated'" in said
    with pytest.raises(ValueError, match=r"predicts only with (gated:Gated|counts:Counts), a class of your own"):
        finished_files(run / "bundle")
    monkeypatch.syspath_prepend(str(tmp_path / "killed"))
    assert predict([str(run), str(table), "-o", str(out)]) == 0
    predicted = [float(row["reads_predicted"]) for row in read_rows(out)]
    assert min(predicted) >= 0.05
    whole = {row["id"]: float(row["prediction"]) for row in read_rows(run / "predictions.csv")}
    for row, value in zip(read_rows(out), predicted, strict=True):
        assert whole.get(row["name"], value) == pytest.approx(value, rel=1e-5)
    assert "heads of the form 'gated:Gated', which transformers does not have" in refusal(
        capfd, export, run, "-o", tmp_path / "exported"
    )
    assert compare([str(run), str(run)]) == 0
    assert "deviance_explained" in capfd.readouterr().out
    (tmp_path / "killed/counts.py").write_text((tmp_path / "killed/counts.py").read_text() + "\n# changed\n")
    forget()
    said = refusal(capfd, predict, run, table, "-o", out, "--overwrite")
    assert "the file of counts:Counts is not the one that trained" in said


@pytest.mark.parametrize(("name", "most"), [("counts", 100), ("gated", 60)])
def test_an_example_is_short(name: str, most: int) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= most
