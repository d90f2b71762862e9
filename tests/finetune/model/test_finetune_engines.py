"""Heads of every type under the engines: contracts C4, C5 and C11 of docs/contracts.md.

Engines that spread parameters wait for all ranks at each module, so a rank without a label must call as many as others.
"""

import pytest

from support.jobs import every_head_job
from support.kept_runs import STEP_1, Trained, distances, yardstick
from support.launching import largest_difference
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]


@pytest.fixture(scope="module")
def heads_trained(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The end of a run of 16 steps; each is made once."""
    return Trained(pool, recipe_in, tmp_path_factory, program=every_head_job.__name__)


@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        ("fsdp2", 2),
        *(pytest.param(*each, marks=pytest.mark.prove) for each in (("ddp", 3), ("zero2", 2), ("zero3", 2))),
    ],
)
def test_every_engine_ends_where_one_process_ends(heads_trained: Trained, engine: str, processes: int) -> None:
    one = heads_trained("single", 1)
    assert largest_difference(one.end, heads_trained("single", 1, length=STEP_1).end) > 1e-3  # parameters moved
    of_weights, of_losses = yardstick(heads_trained)
    found = distances(one, heads_trained(engine, processes))
    print(engine, processes, found, "yardstick", of_weights, of_losses)
    assert of_weights < 2e-6
    assert found[0] <= 3 * of_weights
    assert found[1] <= 3 * of_losses


def test_control_counts_of_each_rank_alone_are_far_off(heads_trained: Trained) -> None:
    """The fault divides the first objective's losses by each rank's own count."""
    wrong = heads_trained("ddp", 2, fault="local_counts")
    assert largest_difference(heads_trained("single", 1).end, wrong.end) > 100 * yardstick(heads_trained)[0]
