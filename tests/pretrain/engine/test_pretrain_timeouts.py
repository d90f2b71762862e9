"""How long ranks wait for one another: as long in every group that a run makes as in that of the whole world.

torch gives a group 10 minutes under NCCL, and 30 under gloo, unless it is told otherwise; saves may take rank 0 longer.
"""

from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from data.recipe.toml_file import read
from pretrain.engine.launch import launch
from pretrain.engine.ranks import TIMEOUT
from pretrain.optimizer.build import build_optimizer
from pretrain.optimizer.groups import parameter_groups
from pretrain.recipe import Recipe
from support.forgotten_runs import forgotten
from support.forked import forked, status_of
from support.inputs.whole_models import build_model
from support.launching import FLOAT32, launch_environments
from support.places import ROOT


def patience(group: dist.ProcessGroup) -> object:
    return group._get_backend(torch.device("cpu")).options._timeout


@pytest.mark.launch
def test_groups_of_copies_shards_and_contexts_wait_as_long_as_the_world(recipe_in, tmp_path: Path) -> None:
    recipe = read(Recipe, recipe_in(tmp_path), ["parallel.context=2"])
    environments = launch_environments(ROOT / "accelerate_configs" / "hsdp.yaml", 4, FLOAT32)

    def rank(index: int) -> None:
        with forgotten({}):  # what tests before this one have left in the process that was forked
            pass
        with forgotten(environments[index]), launch(recipe) as engine:
            assert engine.name == "hsdp"
            assert engine.context.group is not None
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_deepspeeds_clone_of_the_world_waits_as_long(recipe_in, tmp_path: Path, name: str) -> None:
    recipe = read(Recipe, recipe_in(tmp_path))
    environments = launch_environments(ROOT / "accelerate_configs" / f"{name}.yaml", 2, FLOAT32)

    def rank(index: int) -> None:
        with forgotten({}):
            pass
        with forgotten(environments[index]), launch(recipe) as engine:
            model = build_model(recipe.model, seed=1)
            prepared, _ = engine.prepare(
                model, build_optimizer(parameter_groups(model, recipe.optimizer), recipe.optimizer)
            )
            group = prepared.optimizer.dp_process_group  # what its optimizer reduces and gathers in
            assert group is not dist.group.WORLD
            assert patience(group) == TIMEOUT

    pids = [forked(lambda index=index: rank(index)) for index in range(2)]
    assert [status_of(pid) for pid in pids] == [0] * 2
