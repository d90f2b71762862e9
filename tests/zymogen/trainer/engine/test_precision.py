"""Precision is the engine's: float32 state, autocast in the step, a loss scale in fp16, no wait for the device.

There is no GPU here, so fp16 runs on the CPU, where a launch refuses it: an `Engine` is built directly.
"""

import json
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import zymogen.trainer.loop
from data.batches.contents import MaskedContents
from data.batches.loader import Loader, Step
from data.batches.masking import BertMask
from data.corpus.reader import CorpusReader
from data.order.plan import Cursor
from data.settings import DataSettings
from pretrain.job import PretrainingJob
from pretrain.model.settings import ModelSettings
from pretrain.recipe import Recipe
from support.inputs.raw_store import Records, plan_over, write_store
from support.inputs.whole_models import build_model
from support.launching import bit_equal, end_of, lines
from zymogen.settings.toml_file import read
from zymogen.trainer.attempt import train
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups
from zymogen.trainer.optimizer.settings import OptimizerSettings
from zymogen.trainer.step import StepResult, train_step

BINS = 7
PRECISIONS = ("no", "bf16", "fp16")
DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Iterator[Step]]:
    """The first steps of a stream, anew at each call."""
    lengths = np.random.default_rng(0).integers(1, 110, 200)
    reader = CorpusReader([write_store(tmp_path_factory.mktemp("precision"), lengths)])
    settings = DataSettings(sources=("-",), crop_tokens=128, bin_tokens=128, bins_per_step=BINS, bins_per_forward=3)

    def first(number: int) -> Iterator[Step]:
        return islice(
            Loader(
                MaskedContents(reader, settings, BertMask(settings.mask), 0),
                plan_over(reader, Records(200), settings),
                Cursor(),
                0,
                0,
                1,
            ),
            number,
        )

    return first


class Trained:
    """A tiny model and what a step needs with it."""

    def __init__(self, precision: str, scale: float | None = None, *, gpu: bool = False, **options: Any) -> None:
        self.engine = Engine(Accelerator(cpu=not gpu), precision)
        if scale is not None:
            self.engine.restore_scaler({"scale": scale, "growth_tracker": 0})
        plain = build_model(ModelSettings(preset="esm2_60k"), seed=1)
        optimizer = (
            torch.optim.AdamW(plain.parameters(), **options)
            if options
            else build_optimizer(parameter_groups(plain, OptimizerSettings()), OptimizerSettings())
        )
        self.model, self.optimizer = self.engine.prepare(plain, optimizer)

    def queue(self, step: Step) -> StepResult:
        settings = {"bins_per_step": BINS, "weights": torch.ones(1), "clip_norm": 1.0, "learning_rate": 3e-3}
        return train_step(step, self.model, self.optimizer, self.engine, **settings)

    def take(self, step: Step) -> StepResult:
        return self.queue(step).to_host()

    def everything(self) -> dict[str, Tensor]:
        """Copies of weights, moments and step counts."""
        found = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            found |= {f"{key}/{name}": torch.as_tensor(v).clone() for key, v in self.optimizer.state[p].items()}
        return found


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_step_computes_in_it_and_keeps_float32(steps, precision: str) -> None:
    trained, seen, gradients = Trained(precision), set(), set()
    for module in trained.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    inner = trained.optimizer.optimizer
    inner.register_step_pre_hook(lambda *_: gradients.update(p.grad.dtype for p in trained.model.parameters()))
    assert [trained.take(step).applied for step in steps(2)] == [True, True]
    assert (seen, gradients) == ({DTYPES[precision]}, {torch.float32})
    assert {tensor.dtype for tensor in trained.everything().values()} == {torch.float32}
    assert "forward" not in vars(trained.model)  # where Accelerate puts an autocast of its own
    assert trained.engine.scaler_state() is None or precision == "fp16"


def test_the_launchers_precision_is_the_engines_not_accelerates(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with launch(read(Recipe, recipe_in(tmp_path))) as engine:
        assert (engine.precision, engine.accelerator.mixed_precision, engine.accelerator.scaler) == ("bf16", "no", None)


def test_an_engine_of_no_known_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision 'fp8': must be one of no, bf16, fp16"):
        Engine(Accelerator(cpu=True), "fp8")


@pytest.mark.parametrize("options", [{}, {"foreach": True}], ids=["decides on the device", "decides on the host"])
def test_a_skipped_first_step_leaves_a_fresh_optimizer(steps, options: dict[str, Any]) -> None:
    skipping, clean = Trained("no", **options), Trained("no", **options)
    first, second = steps(2)
    assert hasattr(skipping.optimizer.optimizer, "_step_supports_amp_scaling") == (not options)
    start = dict(skipping.model.named_parameters())
    weights = {name: p.detach().clone() for name, p in start.items()}
    handle = next(skipping.model.parameters()).register_hook(lambda gradient: gradient / 0)
    assert not skipping.take(first).applied
    handle.remove()
    assert all(torch.equal(p, weights[name]) for name, p in start.items())
    assert not {"found_inf", "grad_scale"} & vars(skipping.optimizer.optimizer).keys()
    assert skipping.take(second).applied
    assert clean.take(second).applied
    assert same(skipping.everything(), clean.everything())  # moments and step counts started at zero in both


class NothingRead(TorchDispatchMode):
    """Fails where a tensor's value is asked for on the host, as `bool`, `float` and `item` do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host read a value"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> TorchDispatchMode:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the host read a tensor")

    for reader in ("tolist", "numpy", "cpu", "__array__"):  # copies that no dispatch mode sees on a CPU
        monkeypatch.setattr(Tensor, reader, refuse)
    return NothingRead()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_reads_nothing_from_the_device(steps, precision: str, nothing_read: TorchDispatchMode) -> None:
    trained = Trained(precision)
    trained.model.encoder.attention = "dense"  # the others read where documents are, which never leaves the host
    for step in list(steps(2)):
        with nothing_read:
            result = trained.queue(step)
        assert float(result.packed.view(torch.float64)[2 - result.num_floats]) == 0  # it was not skipped
    with pytest.raises(AssertionError, match="the host read"):
        _ = result.applied


def test_control_an_optimizer_that_cannot_decide_is_seen(steps, nothing_read: TorchDispatchMode) -> None:
    trained = Trained("no", foreach=True)
    trained.model.encoder.attention = "dense"
    (step,) = steps(1)
    with nothing_read, pytest.raises(AssertionError, match="the host read a value"):
        trained.queue(step)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_waits_for_nothing_on_a_gpu(steps, precision: str) -> None:
    AcceleratorState._reset_state(True)  # Accelerate keeps the first device of a process
    trained = Trained(precision, gpu=True)
    assert trained.engine.device.type == "cuda"
    first, second, third = steps(3)
    trained.take(first)  # libraries that are opened, and memory that is pinned, wait the first time
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [trained.queue(second), trained.queue(third)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        AcceleratorState._reset_state(True)
    assert all(result.to_host().applied for result in results)


def test_an_overflow_skips_the_step_and_halves_the_scale(steps) -> None:
    trained = Trained("fp16")
    first, second = steps(2)
    trained.take(first)
    trained.engine.restore_scaler({"scale": 2.0**30, "growth_tracker": 5})
    before, scales = trained.everything(), []
    while not (reading := trained.take(second)).applied:
        scales.append(reading.loss_scale)
        assert same(trained.everything(), before)
        assert not math.isfinite(reading.grad_norm)
        assert math.isfinite(reading.losses[0])
        assert trained.engine.scaler_state() == {"scale": reading.loss_scale / 2, "growth_tracker": 0}
    assert scales == [2.0**n for n in range(30, 30 - len(scales), -1)]
    assert len(scales) > 3
    assert reading.loss_scale == scales[-1] / 2
    assert not same(trained.everything(), before)
    assert trained.engine.scaler_state() == {"scale": reading.loss_scale, "growth_tracker": 1}


def run_fp16(recipe: Path, *overrides: str, precision: str = "fp16", scale: float = 2.0**22) -> None:
    """A run whose scale has to come down first, and grows every 7 steps so that the tracker matters."""
    engine = Engine(Accelerator(cpu=True), precision)
    engine.restore_scaler({"scale": scale, "growth_tracker": 0})
    engine.scaler.set_growth_interval(7)
    train(read(Recipe, recipe, overrides), PretrainingJob, engine)


def trainer_of(run: Path) -> dict[str, Any]:
    return json.loads(sorted(run.glob("checkpoints/step-*/trainer.json"))[-1].read_text())


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    calls = iter(range(1, 1000))

    def until(*args: Any, **settings: Any) -> StepResult:
        if next(calls) == number:
            raise KeyboardInterrupt
        return train_step(*args, **settings)

    monkeypatch.setattr(zymogen.trainer.loop, "train_step", until)


@pytest.mark.slow
def test_fp16_resumes_bit_equal(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = (recipe_in(tmp_path / name) for name in ("whole", "stopped"))
    run_fp16(whole)
    stop_at(monkeypatch, 14)
    with pytest.raises(KeyboardInterrupt):
        run_fp16(stopped)
    monkeypatch.undo()
    middle = trainer_of(stopped.parent / "run")
    assert middle["step"] == 10
    assert middle["skipped_steps"] > 3  # in a row, and the run went on: the scale was still being found
    assert middle["entries"]["loss_scale"]["growth_tracker"] > 0
    run_fp16(stopped)
    (_,) = json.loads((stopped.parent / "run/run.json").read_text())["compute"]  # the same precision: nothing to say
    assert trainer_of(stopped.parent / "run") == trainer_of(whole.parent / "run")
    assert bit_equal(end_of(stopped.parent / "run"), end_of(whole.parent / "run"))
    scales = [line["loss_scale"] for line in lines(whole.parent / "run/metrics.jsonl") if "loss" in line]
    assert scales[:6] == [2.0**n for n in (22, 21, 20, 19, 18, 17)]
    assert max(scales[10:]) > min(scales[:10])  # it grew, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [("bf16", "fp16"), *(pytest.param(*each, marks=pytest.mark.prove) for each in (("fp16", "bf16"), ("no", "fp16")))],
)
def test_a_run_may_change_its_precision(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    recipe = recipe_in(tmp_path)
    stop_at(monkeypatch, 12)
    with pytest.raises(KeyboardInterrupt):
        run_fp16(recipe, precision=first, scale=2.0**12)
    monkeypatch.undo()
    assert ("loss_scale" in trainer_of(tmp_path / "run")["entries"]) == (first == "fp16")
    run_fp16(recipe, precision=then, scale=2.0**13)
    end = trainer_of(tmp_path / "run")
    assert end["step"] == 30
    assert ("loss_scale" in end["entries"]) == (then == "fp16")
    resumed = [line for line in lines(tmp_path / "run/metrics.jsonl") if line["attempt"] == 2 and "loss" in line]
    assert [line.get("loss_scale") for line in resumed[:1]] == ([2.0**13] if then == "fp16" else [None])
    said = json.loads((tmp_path / "run/run.json").read_text())["compute"]
    assert said[-1] == (
        f"precision: {then} from here on; up to step 10 it was {first}: to keep that, launch with --mixed_precision "
        f"{first}"
    )
