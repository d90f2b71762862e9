"""How long ranks wait for one another: as a recipe says in a step, and far longer for work that one of them does.

torch gives a group 10 minutes under NCCL, and 30 under gloo, unless it is told otherwise.
"""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from pretrain.recipe import Recipe
from support.forgotten_runs import forgotten
from support.forked import forked, status_of
from support.inputs.whole_models import build_model
from support.launching import FLOAT32, launch_environments, until
from support.places import ROOT
from zymogen.settings.toml_file import read
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.engine.ranks import PATIENCE
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups

TIMEOUT = timedelta(minutes=7)
MINUTES_7 = "parallel.timeout=7 min"


def patience(group: dist.ProcessGroup) -> object:
    return group._get_backend(torch.device("cpu")).options._timeout


@pytest.mark.launch
def test_groups_of_copies_shards_and_contexts_wait_as_long_as_a_recipe_says(recipe_in, tmp_path: Path) -> None:
    recipe = read(Recipe, recipe_in(tmp_path), ["parallel.context=2", MINUTES_7])
    environments = launch_environments(ROOT / "accelerate_configs" / "hsdp.yaml", 4, FLOAT32)

    def rank(index: int) -> None:
        with forgotten({}):  # what tests before this one have left in the process that was forked
            pass
        with forgotten(environments[index]), launch(recipe) as engine:
            assert engine.name == "hsdp"
            assert engine.context.group is not None
            assert engine.patient is not None
            assert patience(engine.patient) == PATIENCE
            assert patience(dist.group.WORLD) == TIMEOUT
            assert patience(engine.context.group) == TIMEOUT
            model = build_model(recipe.model, seed=1)
            prepared, _ = engine.prepare(
                model, build_optimizer(parameter_groups(model, recipe.optimizer), recipe.optimizer)
            )
            meshes = {p.device_mesh for p in prepared.parameters() if isinstance(p, DTensor)}
            groups = [group for mesh in meshes for group in mesh.get_all_groups()]
            assert [group.size() for group in groups] == [2, 2]
            assert [patience(group) for group in groups] == [TIMEOUT] * 2

    pids = [forked(lambda index=index: rank(index)) for index in range(4)]
    assert [status_of(pid) for pid in pids] == [0] * 4


@pytest.mark.launch
def test_ranks_wait_longer_for_work_of_one_than_for_one_another(recipe_in, tmp_path: Path) -> None:
    recipe = read(Recipe, recipe_in(tmp_path), ["parallel.timeout=1.5 s"])
    environments = launch_environments(ROOT / "accelerate_configs" / "ddp.yaml", 2, FLOAT32)

    def rank(index: int) -> None:
        with forgotten({}):
            pass
        (tmp_path / f"ready-{index}").touch()
        until((tmp_path / f"ready-{1 - index}").exists, tmp_path / "recipe.toml")  # they meet within the timeout, too
        with forgotten(environments[index]), launch(recipe) as engine:
            assert engine.on_main(lambda: time.sleep(2.5) or "built") == "built"
            assert engine.gather(time.sleep(2.5 * index)) == [None, None]
            began = time.monotonic()
            if index == 0:
                with pytest.raises(RuntimeError, match="Timed out"):
                    engine.sum_over_ranks(torch.ones(1))
                assert 1.4 < time.monotonic() - began < 10
            else:
                time.sleep(10)

    pids = [forked(lambda index=index: rank(index)) for index in range(2)]
    assert status_of(pids[0]) == 0
    os.kill(pids[1], signal.SIGKILL)
    status_of(pids[1])


def test_a_timeout_that_is_no_time_is_refused(recipe_in, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"parallel.timeout is '10 steps'; it must be a time: '30 s', '10 min', '2 h'"):
        read(Recipe, recipe_in(tmp_path), ["parallel.timeout=10 steps"])
