"""A push that waits for its model to be better: what is compared decides, and nothing is sent before."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from data.corpus.prepare import open_corpora, prepare_corpora
from pretrain.model.weights import io as transformers_io
from pretrain.push.__main__ import main
from support.hub.client import local_hub
from support.hub.folders import contents, write_bundle
from support.hub.server import Hub
from support.jobs.finished_runs import SHAPE, finished_run, model_of, settings_of

NAME = "lab/model"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with local_hub(tmp_path) as running:
        yield running


@pytest.fixture
def run(families_files: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run that has learned nothing, with two exports: of frequencies of residues, and of other noise."""
    settings = settings_of(families_files, tmp_path)
    counts = torch.from_numpy(open_corpora(settings, prepare_corpora(settings)).token_counts(10**8))
    better, noise = model_of(), model_of(seed=1)
    with torch.no_grad():
        for name, parameter in better.head.named_parameters():
            if name.endswith("bias") and parameter.shape == (33,):
                parameter.copy_((counts + 1.0).log())
            else:
                parameter.zero_()
    run = finished_run(tmp_path / "own", settings, [noise], SHAPE)
    for name, model in (("better", better), ("noise", noise)):
        (run / name).mkdir()
        transformers_io.save(model, run / name)
    return run


def test_what_is_better_is_pushed_and_nothing_else(hub: Hub, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(run / "noise"), NAME, "--only-if-better-than", str(run)]) == 1
    assert "cannot be told from" in capfd.readouterr().out
    assert main([str(run / "noise"), NAME, "--only-if-better-than", str(run / "better"), "--data", str(run)]) == 1
    assert "/noise is worse than " in capfd.readouterr().out
    assert hub.faulty.requests == []
    assert main([str(run / "better"), NAME, "--only-if-better-than", str(run)]) == 0
    assert "/better is better than " in capfd.readouterr().out
    files = hub.repositories[NAME].files
    assert files == contents(run / "better")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only-if-better-than", "RUN"], "python -m finetune.compare A B ends with status 1 where B is worse"),
        (["--data", "RUN"], "--data is what --only-if-better-than compares on; give both or none"),
        (["--only-if-better-than", "RUN", "--watch"], "--only-if-better-than is for one push"),
        (["--only-if-better-than"], "--only-if-better-than cannot be read"),
    ],
)
def test_what_cannot_be_compared(hub: Hub, tmp_path: Path, capfd, words: list[str], said: str) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    assert main([str(bundle), NAME, *(word.replace("RUN", str(tmp_path)) for word in words)]) == 78
    printed = capfd.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert hub.faulty.requests == []
