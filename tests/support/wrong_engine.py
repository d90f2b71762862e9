"""The program with a deliberate fault, for tests that must be able to see it.

Each fault is a context in which the program has it.
"""

import ctypes
import gc
import hashlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from data.batches.batch import Batch, Targets
from data.batches.loader import Step
from pretrain import job as masked_language_job
from pretrain.machine import Machine
from pretrain.model import compute, layer
from pretrain.model.attention import sdpa
from pretrain.model.context import group_of
from pretrain.model.memory import MEMORY_SHARE, memory_of
from pretrain.model.presets import PRESETS
from support import held_state
from support.checkpoint_run import written_at_once
from support.held_state import held
from support.jobs import full_disks, half_frozen, late_reading, numerical_faults
from zymogen import onednn
from zymogen.trainer import attempt, loop
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.reader import read_tensors
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.optimizer import muon
from zymogen.trainer.run import interval_schedule
from zymogen.unsupported import UnsupportedFeature


def local_counts() -> AbstractContextManager[Any]:
    """Divides by each rank's own target count, as a loss averaged per rank does."""
    summed = Engine.sum_over_ranks

    def faulty(self: Engine, values: Tensor) -> Tensor:
        is_ledger = values.dtype == torch.int64
        total = summed(self, values)
        return torch.cat([values[:1] * self.world_size, total[1:]]) if is_ledger else total

    return mock.patch.object(Engine, "sum_over_ranks", faulty)


def unsettled() -> AbstractContextManager[Any]:
    """Leaves out the pass that gives DDP's buckets their final layout before the first step."""

    def faulty(self: Engine, model: Any, batch: Any) -> None:
        pass

    return mock.patch.object(Engine, "warm_up", faulty)


def causal() -> AbstractContextManager[Any]:
    """A residue sees none that come after it in its document; with compute.attention=per_document."""

    def faulty(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)

    return mock.patch.object(sdpa, "_document", faulty)


def own_share() -> AbstractContextManager[Any]:
    """With parallel.context, a residue sees those of its document that this rank holds, and no others."""
    attend = layer.attend

    def faulty(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, layout: Any, _: Any) -> Tensor:
        if layout.exchange is None:
            return attend(query, key, value, cos, sin, layout)
        first, slots = group_of(layout.group).rank() * len(query), len(query)
        spans = (layout.spans - first).clamp(0, slots)
        own = layout._replace(exchange=None, spans=spans[spans[:, 0] < spans[:, 1]])
        return attend(query, key, value, cos[first : first + slots], sin[first : first + slots], own)

    def read(gathered: Tensor, _: Any, slots: Tensor | None) -> Tensor:
        return gathered if slots is None else gathered.index_select(0, slots)

    return mock.patch.multiple(layer, attend=faulty, own_slots=read)


def infinite() -> AbstractContextManager[Any]:
    """The loss of rank 0 is infinite in the fifth step."""
    train_step, steps = loop.train_step, itertools.count(1)

    def faulty(step: Any, model: Any, optimizer: Any, engine: Engine, **how: Any) -> Any:
        kind = type(engine)
        backward = kind.backward
        factor = float("inf") if next(steps) == 5 and engine.rank == 0 else 1.0
        with mock.patch.object(kind, "backward", lambda self, model, loss: backward(self, model, loss * factor)):
            return train_step(step, model, optimizer, engine, **how)

    return mock.patch.object(loop, "train_step", faulty)


def slow_clock() -> AbstractContextManager[Any]:
    """By the clock of the ranks after the first, no time passes. Each save has ended before the next step begins."""
    rank, stack = int(os.environ["RANK"]), ExitStack()
    stack.enter_context(written_at_once())
    stack.enter_context(
        mock.patch.object(interval_schedule, "monotonic", (lambda: 0.0) if rank else interval_schedule.monotonic)
    )
    return stack


def signalled(by: signal.Signals, rank: int) -> AbstractContextManager[Any]:
    """A rank gets a signal in its fifth step, after it has told the others what it has for them."""
    train_step, steps = loop.train_step, itertools.count(1)

    def faulty(step: Any, model: Any, optimizer: Any, engine: Engine, **how: Any) -> Any:
        if next(steps) == 5 and engine.rank == rank:
            os.kill(os.getpid(), by)
        return train_step(step, model, optimizer, engine, **how)

    return mock.patch.object(loop, "train_step", faulty)


def interrupted() -> AbstractContextManager[Any]:
    """The first rank gets SIGINT."""
    return signalled(signal.SIGINT, 0)


def terminated() -> AbstractContextManager[Any]:
    """The second rank gets SIGTERM."""
    return signalled(signal.SIGTERM, 1)


def small_rounds() -> AbstractContextManager[Any]:
    """No fault: Muon moves few matrices at a time."""
    return mock.patch.object(muon, "LARGEST_ROUND", 10_000)


def targetless() -> AbstractContextManager[Any]:
    """No fault: in every world the same three of a step's bins have nothing to predict."""
    train_step = loop.train_step

    def without_targets(batch: Batch, places: Sequence[int]) -> Batch:
        slots = batch.tokens.numel() // batch.num_bins
        (targets,) = batch.targets
        kept = torch.tensor([place not in (0, 3, 4) for place in places])[targets.slots // slots]
        return replace(batch, targets=(Targets(targets.slots[kept], targets.labels[kept]),))

    def altered(step: Step, *arguments: Any, **how: Any) -> Any:
        places, batches = iter(step.bins), []
        for batch in step.batches:
            batches.append(without_targets(batch, list(itertools.islice(places, batch.num_bins))))
        return train_step(replace(step, batches=tuple(batches)), *arguments, **how)

    return mock.patch.object(loop, "train_step", altered)


def every_product_by_onednn() -> AbstractContextManager[Any]:
    """No fault: oneDNN takes products of any size, those of a small model too."""
    return mock.patch.multiple(onednn, ROWS=1, PRODUCTS=1)


def compare_what_was_restored() -> AbstractContextManager[Any]:
    """No fault: what each engine holds after a checkpoint was read is compared with the file, bit for bit."""
    restore = attempt.restore

    def compared(checkpoint: Any, state: Any, *rest: Any, **how: Any) -> Any:
        trainer = restore(checkpoint, state, *rest, **how)
        model, optimizer = (read_tensors(checkpoint, part) for part in ("model", "optimizer"))
        steps = json.loads((checkpoint.path / "optimizer/index.json").read_text())["steps"]
        kept = {key for name in state.names for key in (f"{moment}/{name}" for moment in state.moments(name))}
        assert kept == set(optimizer)
        for name in state.names:
            assert state.step_of(name) == steps[name], name
            assert torch.equal(held(state, name, "param"), model[name]), name
            for moment in state.moments(name):
                assert torch.equal(held(state, name, moment), optimizer[f"{moment}/{name}"]), (moment, name)
        print("restored: every tensor and step as in the file", flush=True)
        return trainer

    return mock.patch.object(attempt, "restore", compared)


def say_first_weights() -> AbstractContextManager[Any]:
    """No fault: each rank prints the digest of what all ranks together hold when a run begins."""
    fill = attempt.fill

    def said(state: Any, names: Any, first: Any) -> None:
        fill(state, names, first)
        print(f"first weights: {digest({name: held(state, name, 'param') for name in state.names})}", flush=True)

    return mock.patch.object(attempt, "fill", said)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].detach().numpy().tobytes())
    return total.hexdigest()


def rise(function: Callable[[], object]) -> int:
    """By how many bytes this process's resident memory rose at most while `function` ran."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before goes back, or it would serve this call unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    function()
    return _resident("VmHWM") - before


def measured() -> AbstractContextManager[Any]:
    """No fault: each rank prints by how many bytes its memory rose while it built or resumed, and at each save."""

    def watched(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **how: Any) -> Any:
            results: list[Any] = []
            print(f"rose by {rise(lambda: results.append(function(*arguments, **how)))} bytes: {what}", flush=True)
            return results[0]

        return call

    stack = ExitStack()
    stack.enter_context(mock.patch.object(attempt, "prepare", watched("start", attempt.prepare)))
    stack.enter_context(mock.patch.object(saver, "commit", watched("save", saver.commit)))
    return stack


def _resident(field: str) -> int:
    return 1024 * next(int(w.split()[1]) for w in Path("/proc/self/status").read_text().splitlines() if field in w)


def compiles_on_rank_0() -> AbstractContextManager[Any]:
    """Layers are compiled where nobody says whether, and on rank 1 alone a first compiled step fails."""
    failed = UnsupportedFeature("a first compiled step failed (on this rank)", "compute.compile=off")

    def faulty(*_: Any) -> UnsupportedFeature | None:
        return failed if torch.distributed.get_rank() == 1 else None

    return mock.patch.multiple(compute, first_step=faulty, _GAIN=("cpu",))


def fails_on_rank_1() -> AbstractContextManager[Any]:
    """The fourth step raises an error on rank 1, and there alone."""
    train_step, steps = loop.train_step, itertools.count(1)

    def faulty(step: Any, model: Any, optimizer: Any, engine: Engine, **how: Any) -> Any:
        if next(steps) == 4 and engine.rank == 1:
            raise KeyError("missing")
        return train_step(step, model, optimizer, engine, **how)

    return mock.patch.object(loop, "train_step", faulty)


def killed_on_rank_0() -> AbstractContextManager[Any]:
    """Rank 0 is killed in the fourth step."""
    train_step, steps = loop.train_step, itertools.count(1)

    def faulty(step: Any, model: Any, optimizer: Any, engine: Engine, **how: Any) -> Any:
        if next(steps) == 4 and engine.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(step, model, optimizer, engine, **how)

    return mock.patch.object(loop, "train_step", faulty)


def hang() -> AbstractContextManager[Any]:
    """Rank 1 does nothing, for ever."""
    train = attempt.train

    def faulty(recipe: Any, open_job: Any, engine: Engine, **how: Any) -> Any:
        while engine.rank == 1:
            time.sleep(1)
        return train(recipe, open_job, engine, **how)

    return mock.patch.object(attempt, "train", faulty)


def flips_a_bit() -> AbstractContextManager[Any]:
    """Rank 1's memory changes in a bit after the 12th step: an element of a weight of the second layer."""
    train_step, steps = loop.train_step, itertools.count(1)

    def faulty(step: Any, model: Any, optimizer: Any, engine: Engine, **how: Any) -> Any:
        result = train_step(step, model, optimizer, engine, **how)
        if next(steps) == 12 and engine.rank == 1:
            _, tensors = engine.named_state(model, optimizer).replica()
            flip_bit(next(tensor for name, tensor in tensors.items() if name.startswith("encoder.layers.1.")))
        return result

    return mock.patch.object(loop, "train_step", faulty)


def loads_another_bit() -> AbstractContextManager[Any]:
    """What rank 1 stores first of the state differs by a bit from what it has read."""
    restore = attempt.restore

    def faulty(checkpoint: Any, state: Any, *rest: Any, **how: Any) -> Any:
        end_load = state.end_load

        def altered() -> None:
            end_load()
            if rest[0].rank == 1:
                flip_bit(state.pieces()[0].live)

        with mock.patch.object(state, "end_load", altered):
            return restore(checkpoint, state, *rest, **how)

    return mock.patch.object(attempt, "restore", faulty)


def flip_bit(tensor: Tensor) -> None:
    tensor.detach().view(-1).view(torch.int32)[0] ^= 1 << 12


def bytes_for(bins: float, processes: int = 1) -> int:
    """Free bytes of which the share that is used holds so many bins of the run of seconds, in float32."""
    machine = Machine("cpu", "", processes, 1, 0.0, 0.0, engine="ddp" if processes > 1 else "single")
    return int(memory_of(PRESETS["esm2_60k"], int(128 * bins), machine, "adamw").total / MEMORY_SHARE)


def uneven_memory() -> AbstractContextManager[Any]:
    """No fault: rank 0 of two has memory for four bins and a half, rank 1 for two and a half."""
    free = bytes_for(4.5 - 2 * int(os.environ["RANK"]), processes=2)
    return mock.patch.object(masked_language_job, "free_bytes", return_value=free)


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    fault.__name__: fault
    for fault in (
        local_counts,
        unsettled,
        causal,
        own_share,
        infinite,
        slow_clock,
        interrupted,
        terminated,
        late_reading.told_by_reading,
        late_reading.one_step_ahead,
        small_rounds,
        targetless,
        every_product_by_onednn,
        compare_what_was_restored,
        say_first_weights,
        held_state.say_copies_of_weights,
        held_state.norms_of_copies_differ,
        held_state.say_state_bytes,
        measured,
        full_disks.full_disk_twice,
        full_disks.full_on_rank_0,
        full_disks.full_on_rank_1,
        full_disks.full_at_the_first_step,
        compiles_on_rank_0,
        fails_on_rank_1,
        killed_on_rank_0,
        hang,
        flips_a_bit,
        loads_another_bit,
        numerical_faults.not_finite_once,
        numerical_faults.bad_bins,
        uneven_memory,
        half_frozen.every_second_frozen,
        half_frozen.every_other_second_frozen,
        half_frozen.bottom_frozen,
        half_frozen.all_but_matrices_frozen,
    )
}
