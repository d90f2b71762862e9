"""The optimizer: who moves what, skipping on the device, its state in a checkpoint; the learning rate (WSD)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.model.settings import ModelSettings
from support.checkpoint_run import assert_same, everything, restore, save, train
from support.inputs.whole_models import build_model
from zymogen.trainer.checkpoint.load import verify
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.optimizer.kinds import ParameterGroup, build_optimizer, parameter_groups
from zymogen.trainer.optimizer.schedule import learning_rate
from zymogen.trainer.optimizer.settings import OptimizerSettings, ScheduleSettings

MUON = OptimizerSettings(name="muon", weight_decay=0.1)
EITHER = pytest.mark.parametrize("settings", [OptimizerSettings(weight_decay=0.1), MUON], ids=lambda s: s.name)


class Layer(nn.Module):
    """Matrices of one, two and three maps, wide, tall and square."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.qkv.blocks = 3
        self.gate_up = nn.Linear(8, 24)
        self.gate_up.blocks = 2
        self.down = nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        gate, up = self.gate_up(torch.tanh(query * key) + value).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Small(nn.Module):
    """What the optimizer sees of a masked language model: an encoder with layers, and a head beside it."""

    def __init__(self, seed: int = 0, layers: int = 2) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.embedding = nn.Embedding(11, 8)
        self.encoder.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder.embedding(ids)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.head(x)


def built(settings: OptimizerSettings, seed: int = 0, rate: float = 1e-2) -> tuple[Small, torch.optim.Optimizer]:
    model = Small(seed)
    optimizer = build_optimizer(parameter_groups(model, settings), settings)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return model, optimizer


# Groups -----------------------------------------------------------------------------------------------------------


def test_muon_takes_the_matrices_of_the_layers_by_their_blocks() -> None:
    model = Small()
    names = {p: name for name, p in model.named_parameters()}
    groups = parameter_groups(model, OptimizerSettings(name="muon", weight_decay=0.3))
    assert {g["name"]: ([names[p] for p in g["params"]], g["weight_decay"], g.get("blocks")) for g in groups} == {
        "muon_1": ([f"encoder.layers.{i}.down.weight" for i in range(2)], 0.3, 1),
        "muon_2": ([f"encoder.layers.{i}.gate_up.weight" for i in range(2)], 0.3, 2),
        "muon_3": ([f"encoder.layers.{i}.qkv.weight" for i in range(2)], 0.3, 3),
        "decay": (["encoder.embedding.weight", "head.weight"], 0.3, None),
        "no_decay": ([n for n, p in model.named_parameters() if p.ndim == 1], 0.0, None),
    }


def test_groups_of_the_model_hold_each_trainable_parameter_once() -> None:
    model = build_model(ModelSettings(preset="esm2_60k"), seed=1)
    frozen = next(iter(model.encoder.layers)).attention.out.weight.requires_grad_(False)
    held = [p for group in build_optimizer(parameter_groups(model, MUON), MUON).param_groups for p in group["params"]]
    assert Counter(map(id, held)) == Counter(id(p) for p in model.parameters() if p is not frozen)
    model = Small()
    model.encoder.layers[0].down.weight = model.encoder.layers[1].down.weight  # tied
    held = [p for group in parameter_groups(model, MUON) for p in group["params"]]
    assert Counter(map(id, held)) == Counter(map(id, model.parameters()))


@pytest.mark.parametrize("blocks", [0, 5, "3", 2.0])
def test_blocks_that_do_not_divide_the_rows_are_refused(blocks: Any) -> None:
    model = Small()
    model.encoder.layers[1].qkv.blocks = blocks
    with pytest.raises(
        ValueError, match=rf"layers\.1\.qkv\.weight has 24 rows and its module says blocks = {blocks!r}"
    ):
        build_optimizer(parameter_groups(model, MUON), MUON)
    parameter_groups(model, OptimizerSettings(weight_decay=0.1))  # says nothing to AdamW


def test_a_model_without_a_matrix_for_muon_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no trainable matrix of Linear is called encoder\.layers\.\*"):
        parameter_groups(nn.Linear(3, 3), MUON)


# What a step computes ---------------------------------------------------------------------------------------------


def test_the_rest_is_torchs_fused_adamw_to_the_bit() -> None:
    ours, theirs = Small(), Small()
    settings = OptimizerSettings(name="muon", betas=(0.8, 0.9), eps=1e-7, weight_decay=0.3)
    plain = OptimizerSettings(betas=(0.8, 0.9), eps=1e-7, weight_decay=0.3)
    optimizer = build_optimizer(parameter_groups(ours, settings), settings)
    reference = build_optimizer(parameter_groups(theirs, plain), plain)
    rest = {n for n, p in ours.named_parameters() if p.ndim == 1 or not n.startswith("encoder.layers")}
    assert len(rest) == 2 * 5 + 3
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        for group in (*optimizer.param_groups, *reference.param_groups):
            group["lr"] = 1e-3 * (step + 1)
        optimizer.step()
        reference.step()
    a, b = everything(ours, optimizer), everything(theirs, reference)
    of_rest = {key for key in a if key.rpartition("/")[2] in rest}
    assert len(of_rest) == 4 * len(rest)
    assert_same({key: a[key] for key in of_rest}, {key: b[key] for key in of_rest})
    assert not any(torch.equal(a[name], b[name]) for name in dict(ours.named_parameters()) if name not in rest)


class Operations(TorchDispatchMode):
    """Counts what reaches the device, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


READS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}


@EITHER
def test_a_step_reads_nothing_back_and_multiplies_in_batches(settings: OptimizerSettings) -> None:
    model, optimizer = built(settings)
    model.encoder.layers.extend(Layer() for _ in range(8))
    optimizer = build_optimizer(parameter_groups(model, settings), settings)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.found_inf = torch.tensor(0.0)
    with Operations() as operations:
        optimizer.step()
    assert operations.seen.keys() & READS == set()
    # Twice in each of five steps, for each of three kinds of matrices: not for each of ten layers.
    assert operations.seen["aten::baddbmm"] == (30 if settings.name == "muon" else 0)
    with Operations() as operations:
        float(optimizer.found_inf)
    assert operations.seen.keys() & READS  # such a read would have been seen


# Skipping on the device -------------------------------------------------------------------------------------------


def bits(state: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


@EITHER
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [False, True])
def test_found_inf_leaves_everything_as_it_is(settings: OptimizerSettings, value: float, first: bool) -> None:
    """Bit for bit, on the first step too, where the state begins as zeros."""
    model, optimizer = built(settings)
    if not first:
        train(model, optimizer, 0, 2)
    before = everything(model, optimizer)
    model(torch.arange(11)).sum().backward()
    for parameter in model.parameters():
        parameter.grad.view(-1)[::2] = value
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(1.0), None
    optimizer.step()
    after = everything(model, optimizer)
    fresh = {name: after.pop(name) for name in list(after) if name not in before}
    assert bool(fresh) == first
    assert not any(tensor.any() for tensor in fresh.values())
    assert bits(after) == bits(before)
    optimizer.zero_grad()
    optimizer.found_inf = torch.tensor(0.0)
    train(model, optimizer, 2, 4)
    twin, twin_optimizer = built(settings)
    train(twin, twin_optimizer, *((2, 4) if first else (0, 4)))
    assert_same(everything(model, optimizer), everything(twin, twin_optimizer))


@EITHER
def test_without_found_inf_a_gradient_that_is_not_finite_destroys(settings: OptimizerSettings) -> None:
    model, optimizer = built(settings)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    optimizer.step()
    assert all(p.isnan().all() for p in model.parameters())


@EITHER
def test_gradients_are_divided_by_the_scale(settings: OptimizerSettings) -> None:
    (scaled, a), (plain, b) = built(settings), built(settings)
    for step in range(2):
        for model, optimizer, factor in ((scaled, a, 8.0), (plain, b, 1.0)):
            (model(torch.arange(11).roll(step)).square().sum() * factor).backward()
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(factor), torch.tensor(0.0)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(everything(scaled, a), everything(plain, b))  # 8 is a power of two


# The checkpoint, and Accelerate -----------------------------------------------------------------------------------


def test_a_restored_muon_run_is_bitwise_the_uninterrupted_one(tmp_path: Path) -> None:
    model, optimizer = built(MUON)
    train(model, optimizer, 0, 3)
    state = TorchState(model, optimizer)
    found = verify(save(tmp_path, state, 3))
    assert (state.moments("encoder.layers.0.qkv.weight"), state.step_of("encoder.layers.0.qkv.weight")) == (
        ["momentum_buffer"],
        0,
    )
    assert (state.moments("head.weight"), state.step_of("head.weight")) == (["exp_avg", "exp_avg_sq"], 3)
    at_three = everything(model, optimizer)
    train(model, optimizer, 3, 6)
    end = everything(model, optimizer)

    for moved_on in (0, 2):
        other, other_optimizer = built(MUON, seed=1)
        train(other, other_optimizer, 0, moved_on)
        restore(found, TorchState(other, other_optimizer))
        assert_same(everything(other, other_optimizer), at_three)
        train(other, other_optimizer, 3, 6)
        assert_same(everything(other, other_optimizer), end)


def test_a_muon_run_is_not_continued_with_adamw(tmp_path: Path) -> None:
    model, optimizer = built(MUON)
    train(model, optimizer, 0, 1)
    found = verify(save(tmp_path, TorchState(model, optimizer), 1))
    with pytest.raises(ValueError, match=r"optimizer moments differ: 12 missing in the checkpoint .* 6 unknown"):
        restore(found, TorchState(*built(OptimizerSettings())))


@pytest.mark.parametrize("found_inf", [None, 0.0, 1.0])
def test_begin_load_allocates_zeros_and_moves_nothing(found_inf: float | None) -> None:
    model, optimizer = built(MUON)
    optimizer.found_inf = None if found_inf is None else torch.tensor(found_inf)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    settings = [dict(group) for group in optimizer.param_groups]
    TorchState(model, optimizer).begin_load()
    assert_same({name: p.detach() for name, p in model.named_parameters()}, weights)
    assert [dict(group) for group in optimizer.param_groups] == settings
    cells = {name: optimizer.state[p] for name, p in model.named_parameters()}
    for name, cell in cells.items():
        is_muons = name.startswith("encoder.layers") and weights[name].ndim == 2
        assert cell.keys() == ({"momentum_buffer"} if is_muons else {"step", "exp_avg", "exp_avg_sq"}), name
        assert not any(tensor.any() for tensor in cell.values())
        assert all(tensor.shape == weights[name].shape for key, tensor in cell.items() if key != "step")


# Learning rate ----------------------------------------------------------------------------------------------------

WSD = ScheduleSettings(peak_lr=1.0, total_tokens=1000, warmup_tokens=100, decay_start=0.8, decay_end=1.0, final_lr=0.0)


def test_wsd_by_hand() -> None:
    by_hand = {0: 0.0, 50: 0.5, 99: 0.99, 100: 1.0, 101: 1.0, 500: 1.0, 799: 1.0, 800: 1.0}
    by_hand |= {801: 0.995, 850: 0.75, 900: 0.5, 999: 0.005, 1000: 0.0, 1200: 0.0}
    for tokens, rate in by_hand.items():
        assert learning_rate(WSD, tokens) == pytest.approx(rate, rel=1e-12, abs=1e-12), tokens
    early = ScheduleSettings(
        peak_lr=2.0, total_tokens=1000, warmup_tokens=0, decay_start=0.5, decay_end=0.75, final_lr=0.2
    )
    rates = {t: learning_rate(early, t) for t in (0, 500, 625, 750, 751, 2000)}
    assert rates == pytest.approx({0: 2.0, 500: 2.0, 625: 1.2, 750: 0.4, 751: 0.4, 2000: 0.4}, rel=1e-12)


def test_a_decay_does_not_begin_within_the_warm_up() -> None:
    early = ScheduleSettings(peak_lr=1.0, total_tokens=1000, warmup_tokens=300, decay_start=0.2, decay_end=0.5)
    late = ScheduleSettings(peak_lr=1.0, total_tokens=1000, warmup_tokens=300, decay_end=0.5)
    assert [learning_rate(early, t) for t in range(1100)] == [learning_rate(late, t) for t in range(1100)]
    assert learning_rate(early, 300) == 1.0


def test_muon_without_its_groups_is_refused() -> None:
    groups: list[ParameterGroup] = [{"name": "all", "params": [nn.Parameter(torch.ones(4, 6))], "weight_decay": 0.0}]
    with pytest.raises(ValueError, match=r"no parameter group of the job has `blocks`.*optimizer\.name to 'adamw'"):
        build_optimizer(groups, OptimizerSettings(name="muon"))
