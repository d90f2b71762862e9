"""Comparisons: a model beside itself is 0, swapped arguments change the sign, and the interval is the difference's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data.corpus.prepare import open_corpora, prepare_corpora
from pretrain.compare.__main__ import main
from pretrain.compare.comparison import ModelComparison, ModelDifference
from pretrain.compare.models import compare_models, differences
from pretrain.evaluate.scored_set import EvaluationSetOptions
from pretrain.evaluate.validation import Row
from pretrain.evaluate.verdict import Judgement
from support.jobs.finished_runs import SHAPE, finished_run, model_of, settings_of
from zymogen.settings.json_file import as_json


@pytest.fixture(scope="module")
def run(families_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 1 predicts noise, step 2 the frequencies of residues: logits from the head's bias alone."""
    folder = tmp_path_factory.mktemp("runs")
    settings = settings_of(families_files, folder)
    counts = torch.from_numpy(open_corpora(settings, prepare_corpora(settings)).token_counts(10**8))
    better = model_of()
    with torch.no_grad():
        for name, parameter in better.head.named_parameters():
            if name.endswith("bias") and parameter.shape == (33,):
                parameter.copy_((counts + 1.0).log())
            else:
                parameter.zero_()
    return finished_run(folder / "own", settings, [model_of(), better], SHAPE)


def sums(losses: np.ndarray, targets: np.ndarray) -> dict[str, list[Row]]:
    rows = [(n, float(loss), 0.0, int(count)) for n, (loss, count) in enumerate(zip(losses, targets, strict=True))]
    return dict.fromkeys(("mask_all", "80_10_10"), rows)


def compared(first: dict[str, list[Row]], second: dict[str, list[Row]], groups: np.ndarray) -> ModelComparison:
    found = differences(first, second, dict(enumerate(groups.tolist())))
    names = ("mask-all",)
    return ModelComparison(models=("a", "b"), on="x", set="0", unit="nats a residue", differences=found, decide=names)


def judged(found: ModelComparison) -> ModelDifference:
    """The difference under mask-all, which decides."""
    assert found.decide == ("mask-all",)
    return next(each for each in found.differences if each.name == "mask-all")


def test_the_later_checkpoint_is_better_and_swapped_it_is_worse(run: Path) -> None:
    first = str(run / "checkpoints/step-000000001")
    asked = EvaluationSetOptions(data=())
    found = compare_models(first, str(run), asked)
    assert found.judgement is Judgement.BETTER
    assert 0 < judged(found).low < judged(found).gain < judged(found).high
    swapped = compare_models(str(run), first, asked)
    assert swapped.judgement is Judgement.WORSE
    assert (swapped.set, swapped.on) == (found.set, found.on)
    for one, other in zip(found.differences, swapped.differences, strict=True):
        assert other.gain == -one.gain
        assert (other.low, other.high) == pytest.approx((-one.high, -one.low), rel=1e-12)
        assert other.values == one.values[::-1]
    itself = compare_models(first, first, EvaluationSetOptions(data=(str(run),)))
    assert all((each.gain, each.low, each.high) == (0, 0, 0) for each in itself.differences)
    assert itself.judgement is Judgement.UNDECIDED
    assert "cannot be told from" in itself.line()


def test_what_is_hard_for_both_does_not_widen_the_interval() -> None:
    """Losses that vary a hundred times as much as their difference: the interval is that of the difference."""
    rng = np.random.default_rng(0)
    targets = np.full(200, 10)
    hard = rng.normal(30, 10, 200)
    first, second = hard + rng.normal(0.5, 0.1, 200), hard
    found = judged(compared(sums(first, targets), sums(second, targets), np.arange(200)))
    error = (first - second).std() / 10 / np.sqrt(200)
    assert found.gain == pytest.approx((first - second).mean() / 10, rel=1e-12)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_relatives_are_drawn_together() -> None:
    """Ten copies of each protein say no more than one."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(30, 3, 40), rng.normal(30, 3, 40)
    once = judged(compared(*(sums(each, np.full(40, 10)) for each in (first, second)), np.arange(40)))
    ten = [sums(np.repeat(each, 10), np.full(400, 10)) for each in (first, second)]
    of_copies = judged(compared(*ten, np.repeat(np.arange(40), 10)))
    assert (of_copies.low, of_copies.high) == pytest.approx((once.low, once.high), rel=1e-9)
    assert (of_copies.groups, of_copies.labels) == (40, 4000)


def test_one_group_has_no_interval_and_no_judgement() -> None:
    found = compared(
        sums(np.array([3.0, 4]), np.array([1, 1])), sums(np.array([9.0, 9]), np.array([1, 1])), np.zeros(2)
    )
    assert found.judgement is Judgement.UNDECIDED
    assert json.loads(as_json(found))["differences"][0]["low"] is None
    assert "no interval, all are of one group" in found.line()


def test_the_exit_status_is_the_answer(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, out = str(run / "checkpoints/step-000000001"), str(tmp_path / "found.json")
    assert main([first, str(run), "-o", out]) == 0
    content = json.loads(Path(out).read_text())
    assert (content["judgement"], content["decide"]) == ("better", ["mask-all"])
    assert content["differences"][0]["gain"] > content["differences"][0]["low"] > 0
    assert [len(line.split()) for line in capfd.readouterr().out.splitlines() if "perplexity" in line] == [10, 10]
    assert main([str(run), first]) == 1
    capfd.readouterr()
    (tmp_path / "bundle.json").write_text("{}")
    for arguments, expected in (
        ([first, str(run), "-o", out], "exists; give another name"),
        ([first, str(tmp_path)], "is a fine-tuned model: python -m finetune.compare"),
        ([str(tmp_path / "a"), str(tmp_path / "b")], "lies in a run, whose held-out proteins could be scored"),
        ([first, str(run / "checkpoints/step-000000009")], "step-000000009"),
        ([first, str(run), "--crop-tokens", "2"], "begin, one residue and end are 3 tokens"),
    ):
        assert main(arguments) == 78
        (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        assert expected in said
