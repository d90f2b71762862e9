"""The command beside a real run: the figure of its last validation, on one process and on two."""

from pathlib import Path

import pytest

from pretrain.evaluate.results import ALL, EvaluationResult
from support.kept_runs import Trained, config
from support.launching import lines
from support.rank_pool import RankPool
from zymogen.settings import json_file

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]


def test_one_and_two_processes_give_the_figure_of_the_run(trained: Trained, pool: RankPool, tmp_path: Path) -> None:
    run = trained("single", 1).folder / "run"
    inside = [line for line in lines(run / "metrics.jsonl") if "validation" in line][-1]["validation"]
    found = []
    for processes, engine, more in ((1, "single", ()), (2, "ddp", ("--bin-tokens", "200"))):
        out = tmp_path / f"{processes}.json"
        words = [run, "--training", "none", "-o", out, *more]
        done = pool.run(processes, config(engine), words, program="pretrain.evaluate.__main__")
        assert done.status == 0, done.output
        found.append(json_file.read(EvaluationResult, out, "file of figures", ""))
    assert found[0].set == found[1].set
    for figures in found:
        whole = {row.corruption: row for row in figures.rows if row.by == ALL}
        for name, numbers in inside.items():
            for number in ("perplexity", "low", "high", "unigram", "gain"):
                assert getattr(whole[name], number) == pytest.approx(numbers[number], rel=1e-5, abs=1e-6)
            assert (whole[name].sequences, whole[name].targets) == (numbers["sequences"], numbers["targets"])
    for one, two in zip(found[0].rows, found[1].rows, strict=True):
        assert one.nats == pytest.approx(two.nats, rel=1e-5)
