"""One node of eight: a run saved by eight ranks is exported and goes on under other engines and worlds, within C5.

Eight ranks are the smallest node that most users have. Each of the eight files holds a piece of every tensor.
"""

import shutil
from pathlib import Path

import pytest

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
