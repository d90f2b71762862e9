"""One node of eight: a run saved by eight ranks is exported and goes on under other engines and worlds, within C5.

Eight ranks are the smallest node that most users have. Each of the eight files holds a piece of every tensor.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pretrain.export import __main__ as export
from support.kept_runs import STEPS_12, STEPS_16, Trained, config, distances, yardstick
from support.launching import bit_equal, end_of, largest_difference
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.slow, pytest.mark.xdist_group("engines")]

BINS = ("data.bins_per_step=12",)
"""Ranks get one or two bins each, so that four of eight have an idle micro-batch where ranks keep step."""


def test_eight_ranks_end_where_one_process_ends(trained: Trained) -> None:
    one = trained("single", 1, BINS)
    of_weights, of_losses = yardstick(trained, BINS)
    weights, losses = distances(one, trained("fsdp2", 8, BINS))
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


def test_control_local_counts_are_seen_at_eight_ranks(trained: Trained) -> None:
    wrong = trained("fsdp2", 8, BINS, fault="local_counts")
    assert largest_difference(trained("single", 1, BINS).end, wrong.end) > 300 * yardstick(trained, BINS)[0]


@pytest.mark.parametrize(
    ("engine", "processes"),
    [("fsdp2", 8), *(pytest.param(*to, marks=pytest.mark.prove) for to in (("ddp", 1), ("zero2", 4)))],
)
def test_a_run_saved_by_eight_ranks_continues(
    pool: RankPool, recipe_in, trained: Trained, tmp_path: Path, engine: str, processes: int
) -> None:
    shutil.copytree(trained("fsdp2", 8, BINS, STEPS_12).folder, tmp_path, dirs_exist_ok=True)
    words = [recipe_in(tmp_path), *BINS, *STEPS_16, "--allow-schedule-change"]
    done = pool.run(processes, config(engine), words, fault="compare_what_was_restored")
    assert done.status == 0, done.output
    assert "restored: every tensor and step as in the file" in done.output
    end, whole = end_of(tmp_path / "run"), trained("single", 1, BINS).end
    assert (end.step, end.chain, end.tokens_seen) == (whole.step, whole.chain, whole.tokens_seen)
    assert largest_difference(end, whole) <= 3 * yardstick(trained, BINS)[0]
    if (engine, processes) == ("fsdp2", 8):
        assert bit_equal(end, trained("fsdp2", 8, BINS).end)


def test_an_export_of_eight_files_holds_the_weights_that_one_process_exports(trained: Trained, tmp_path: Path) -> None:
    eight, one = trained("fsdp2", 8, BINS), trained("single", 1, BINS)
    checkpoint = max((eight.folder / "run/checkpoints").glob("step-*"))
    assert len(list((checkpoint / "model").glob("*.safetensors"))) == 8
    exported, expected = (load_file(each.folder / "run/export/model.safetensors") for each in (eight, one))
    assert exported.keys() == expected.keys()
    difference = max(float((exported[name] - expected[name]).abs().max()) for name in expected)
    assert 0 < difference <= 3 * yardstick(trained, BINS)[0]
    copied = shutil.copytree(eight.folder / "run", tmp_path / "run")
    shutil.rmtree(copied / "export")
    assert export.main([str(copied)]) == 0
    for name, tensor in load_file(copied / "export/model.safetensors").items():
        assert torch.equal(tensor, exported[name]), name
