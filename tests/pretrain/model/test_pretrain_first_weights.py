"""How a model begins, resumes and is saved where no process holds all of it: the same values, and no second copy.

The host memory that is bounded here is resident memory above what the process had before, so imports do not count.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pretrain.model.attention.layout import rotate, rotation
from pretrain.model.build import build_meta
from pretrain.model.initialization import initial_weights, local_attention_init, parameter_offsets
from pretrain.model.layer import Layer
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ModelSettings
from pretrain.model.weights import io as transformers_io
from pretrain.recipe import Recipe
from support.checkpoint_run import ranks_of, restore, save
from support.inputs.whole_models import build_model
from support.launching import exits
from support.places import ROOT
from support.rank_pool import Ended, RankPool
from support.wrong_engine import digest, rise
from zymogen.settings.toml_file import read
from zymogen.trainer.attempt import fingerprints_of
from zymogen.trainer.checkpoint.files.blocks import BLOCK_BYTES
from zymogen.trainer.checkpoint.load import unreadable, verify
from zymogen.trainer.checkpoint.writer import StagingBuffer
from zymogen.trainer.engine.named_state import TorchState

SEED_17 = {
    "esm2_60k": "d207cd874e3a8d5cc738381ea392ea1815146c1c1fc09bd5c6151f83a63aad7a",
    "modern_60k": "5eee229910ab713297a894a2513368a6a4befcee765d84c3d7933458a0488528",
    "esm2_800k": "4e02f0686e3bffd1c8e1959b565893cc79587b9d9608f21c6c09ed42ff841b07",
    "esm2_8m": "22336f395bc87e9b720650f55f2c8378b73a2beaef5229efbeb9dfb0ebab71ae",
}
"""Digests of all first weights, as they were when each process made a whole model and then cut it."""
ONE_STEP = "schedule.total_tokens=1"
MB = 10**6


@pytest.mark.parametrize("preset", SEED_17)
def test_first_weights_are_what_they_were(preset: str) -> None:
    model = build_model(ModelSettings(preset=preset), seed=17)
    assert digest(model.state_dict()) == SEED_17[preset]
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("preset", ["esm2_800k", "esm2_8m", "modern_60k", "modern_800k", "modern_8m", "modern_300m"])
def test_heads_of_the_first_layers_begin_by_looking_at_neighbours(preset: str) -> None:
    """Whatever the residues are, most of a head's attention is at its place, at most the rest of it elsewhere."""
    shape = PRESETS[preset]
    first = local_attention_init(build_meta(shape), 5)
    tokens = torch.randint(4, 24, (60,), generator=torch.Generator().manual_seed(0))
    embedding = first["encoder.embedding.weight"]()
    for number, of_heads in enumerate(parameter_offsets(shape)):
        with torch.device("meta"):
            layer = Layer(shape, number)
        prefix = f"encoder.layers.{number}."
        layer.load_state_dict({n.removeprefix(prefix): first[n]() for n in first if n.startswith(prefix)}, assign=True)
        with torch.no_grad():
            query, key, _ = layer._project(embedding[tokens])
            turned = rotation(torch.arange(60), shape)
            scores = torch.einsum("ihk,jhk->hij", rotate(query, *turned), rotate(key, *turned)) / shape.head_dim**0.5
        middle = scores.softmax(-1)[:, 20:40]  # where every place exists
        found = middle.argmax(-1) - torch.arange(20, 40)
        assert (found == torch.tensor(of_heads)[:, None]).all()
        assert middle.amax(-1).min() > 0.45
    assert embedding.std().item() == pytest.approx(0.5 if shape.is_modern else 0.02, rel=0.05)


def test_the_places_are_the_nearest_ones_in_half_of_the_layers() -> None:
    assert parameter_offsets(PRESETS["modern_60k"]) == [[-1, 1]]
    assert parameter_offsets(PRESETS["esm2_800k"]) == [[-1, 1, -2, 2], [-3, 3, -4, 4]]
    (first,) = parameter_offsets(PRESETS["esm2_8m"])
    assert sorted(first) == [*range(-10, 0), *range(1, 11)]
    assert [len(each) for each in parameter_offsets(PRESETS["modern_8m"])] == [5, 5, 5]
    assert parameter_offsets(PRESETS["modern_300m"])[1][4:8] == [10, -1, 1, -2]


def test_nothing_else_begins_otherwise() -> None:
    """All that the start changes is the first layer's attention and, in ESM C's architecture, the embedding."""
    for preset in ("esm2_60k", "modern_60k"):
        model = build_meta(PRESETS[preset])
        plain, other = initial_weights(model, 17), local_attention_init(model, 17)
        changed = {name for name in plain if not torch.equal(plain[name](), other[name]())}
        attention = "encoder.layers.0.attention"
        modern = {f"{attention}_norm.{kind}" for kind in ("weight", "bias")} | {"encoder.embedding.weight"}
        modern |= {f"{attention}.{norm}.weight" for norm in ("query_norm", "key_norm")}
        assert changed == {f"{attention}.qkv.weight"} | (
            modern if preset == "modern_60k" else {f"{attention}.qkv.bias"}
        )
        dim = model.shape.dim
        weight = f"{attention}.qkv.weight"
        assert torch.equal(plain[weight]()[2 * dim :], other[weight]()[2 * dim :])  # values


def test_the_start_of_weights_is_part_of_the_identity() -> None:
    recipe = read(Recipe, ROOT / "recipes/esm2_8m.toml", [])
    changed = read(Recipe, ROOT / "recipes/esm2_8m.toml", ["model.start=neighbours"])
    assert fingerprints_of(changed)["identity"] != fingerprints_of(recipe)["identity"]
    with pytest.raises(ValueError, match=r"model.start is 'neighbours'; weights are read from model.init = 'x'"):
        ModelSettings(init="x", start="neighbours")


def said(done: Ended) -> list[str]:
    """What each rank says of its first weights."""
    assert done.status == 0, done.output
    return [re.findall(r"first weights: (\w+)", output)[0] for output in done.outputs]


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    ("engine", "processes", "preset"),
    [
        ("fsdp2", 3, "esm2_60k"),  # rows that do not divide
        ("ddp", 2, "modern_60k"),
        ("zero3", 2, "modern_60k"),
        *(
            pytest.param(*cell, marks=pytest.mark.prove)
            for cell in (
                ("single", 1, "esm2_60k"),
                ("fsdp2", 2, "modern_60k"),
                ("hsdp", 4, "esm2_60k"),
                ("zero1", 2, "esm2_60k"),
                ("zero2", 3, "modern_60k"),
                ("zero3", 3, "esm2_60k"),
            )
        ),
    ],
)
def test_every_engine_begins_with_the_same_bits(
    pool: RankPool, recipe_in, tmp_path: Path, engine: str, processes: int, preset: str
) -> None:
    words = [recipe_in(tmp_path), f"model.preset={preset}", "run.seed=17", ONE_STEP]
    done = pool.run(processes, ROOT / f"accelerate_configs/{engine}.yaml", words, fault="say_first_weights")
    assert said(done) == [SEED_17[preset]] * processes


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "processes", "preset"),
    [("ddp", 2, "modern_60k"), ("fsdp2", 3, "esm2_60k"), ("hsdp", 4, "modern_60k"), ("zero3", 2, "modern_60k")],
)
def test_every_engine_begins_at_the_neighbours(
    pool: RankPool, recipe_in, tmp_path: Path, engine: str, processes: int, preset: str
) -> None:
    words = [recipe_in(tmp_path), f"model.preset={preset}", "model.start=neighbours", "run.seed=17", ONE_STEP]
    done = pool.run(processes, ROOT / f"accelerate_configs/{engine}.yaml", words, fault="say_first_weights")
    first = local_attention_init(build_meta(PRESETS[preset]), 17)
    assert said(done) == [digest({name: weight() for name, weight in first.items()})] * processes


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "processes"), [("ddp", 2), ("fsdp2", 3), ("zero2", 2), ("zero3", 2)])
def test_every_engine_begins_with_published_weights(
    pool: RankPool, recipe_in, tmp_path: Path, engine: str, processes: int
) -> None:
    published = build_model(ModelSettings(preset="esm2_60k"), seed=3)
    transformers_io.save(published, tmp_path / "published")
    words = [recipe_in(tmp_path), "model.preset=none", f"model.init={tmp_path / 'published'}", ONE_STEP]
    done = pool.run(processes, ROOT / f"accelerate_configs/{engine}.yaml", words, fault="say_first_weights")
    assert said(done) == [digest(published.state_dict())] * processes


class Wide(nn.Module):
    """One large matrix, whose rows two ranks share, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(4096, 4096, bias=False)  # 67 MB
        self.small = nn.Linear(16, 16)


def saves_and_reads(index: int, folder: Path) -> None:
    """One rank of two, which shards, saves twice and restores."""
    largest = 4 * 4096 * 4096
    own = largest // 2
    # What is held once too often has the size of a part; half of one leaves room for code that is mapped at first use.
    slack = own // 2
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=index, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def sharded(fill: float, *, stepped: bool) -> TorchState:
        with torch.device("meta"):
            model = Wide()
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")
        for number, parameter in enumerate(model.parameters()):
            torch.nn.init.constant_(parameter.to_local(), fill * (1 + index + 10 * number))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
        if stepped:  # there are moments to read
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
        return TorchState(model, optimizer)

    state = sharded(1.0, stepped=True)
    staging = StagingBuffer()
    first = rise(lambda: save(folder / "run", state, 1, staging=staging))
    assert first < 3 * own + slack, first  # weights and two moments
    second = rise(lambda: save(folder / "run", state, 2, staging=staging))
    assert second < slack, second
    torch.distributed.barrier()
    other = sharded(0.0, stepped=False)
    # Weights stand already; two moments are made, beside what stands in for the weights; after that, beside one block.
    assert own == 2 * BLOCK_BYTES
    read = rise(lambda: restore(verify(folder / "run/step-000000002", unreadable), other, ranks=ranks_of(index, 2)))
    assert read < 3 * own + slack, read
    for name in state.names:
        for key in ("param", "exp_avg", "exp_avg_sq"):
            ours, theirs = other._tensor(name, key).to_local(), state._tensor(name, key).to_local()
            assert torch.equal(ours, theirs), (name, key)
            assert theirs.all(), (name, key)


@pytest.mark.launch
def test_a_rank_saves_without_a_whole_tensor_and_reads_its_own_part(tmp_path: Path) -> None:
    assert exits(saves_and_reads, [(index, tmp_path) for index in range(2)]) == [0, 0]


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.prove
def test_a_35m_model_is_built_resumed_and_saved_in_half_of_its_memory(
    pool: RankPool, recipe_in, tmp_path: Path
) -> None:
    """Under FSDP2 on two ranks; whole, it would be 134 MB on each, and three times that with its moments."""
    sizes = [4 * parameter.numel() for parameter in build_meta(PRESETS["esm2_35m"]).parameters()]
    config = ROOT / "accelerate_configs/fsdp2.yaml"
    constant = ("schedule.final_lr=1.0", "--allow-schedule-change")

    def measured(folder: str, *words: str) -> list[dict[str, int]]:
        done = pool.run(2, config, [recipe_in(tmp_path / folder), *constant, *words], fault="measured")
        assert done.status == 0, done.output
        found = [re.findall(r"rose by (-?\d+) bytes: (\w+)", output) for output in done.outputs]
        return [{what: int(size) for size, what in of_rank} for of_rank in found]

    measured("first", ONE_STEP)  # what is imported on the way
    fresh = measured("run", "model.preset=esm2_35m", ONE_STEP)
    resumed = measured("run", "model.preset=esm2_35m", "schedule.total_tokens=1_000")
    for rank in range(2):
        assert fresh[rank]["start"] <= sum(sizes) // 2 + max(sizes) + 30 * MB, fresh
        # Two moments, as large; and the block that is read.
        assert resumed[rank]["start"] <= 3 * sum(sizes) // 2 + BLOCK_BYTES + 30 * MB, resumed
    assert max(fresh[1]["save"], resumed[1]["save"]) < max(sizes), (fresh, resumed)
