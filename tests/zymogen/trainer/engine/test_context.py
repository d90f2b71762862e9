"""Context parallelism in the model: ranks that share a batch compute together what one computes alone.

Real processes and real collectives, started once for the file. In float64 losses and gradients, summed over ranks, are
those of one process to 1e-13. In float32 they may be off from float64 by three times what one process is off by.
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from data.batches.batch import Batch
from pretrain.model import encoder as encoder_module
from pretrain.model.attention.choice import Backend
from pretrain.model.attention.exchange import scatter_sum
from pretrain.model.attention.layout import Layout, layout_of
from pretrain.model.compilation import compile_layers
from pretrain.model.context import ContextShard, Exchange
from pretrain.model.encoder import Checkpointing, Encoder
from support.context_ranks import BATCHES, WORLD, Case, Ranks, varlen_kernel
from support.inputs.flat_batches import gradients, saved_bytes

EXCHANGES: tuple[Exchange, ...] = ("ulysses", "all_gather")


# What they compute --------------------------------------------------------------------------------

Found = tuple[float, dict[str, NDArray[np.float64]], NDArray[np.float64]]
"""Loss, gradients and logits of all slots that were computed."""


def computed(case: Case, context: ContextShard | None) -> Found:
    model, batch = case.model(), BATCHES[case.batch]()
    model.encoder.context = context
    own = batch.share(context.rank, context.size) if context else batch
    with ExitStack() as stack:
        for change in CHANGES[case.changed]():
            stack.enter_context(change)
        stack.enter_context(torch.autocast("cpu", case.autocast) if case.autocast else nullcontext())
        loss = model(own).sum()
        loss.backward()
        with torch.no_grad():
            logits = model.eval().logits(batch)
    return float(loss.detach()), {n: g.double().numpy() for n, g in gradients(model).items()}, logits.double().numpy()


def together(context_ranks: Ranks, case: Case) -> Found:
    each = context_ranks.run(case, computed)
    summed = {name: np.sum([found[1][name] for found in each], 0) for name in each[0][1]}
    return sum(found[0] for found in each), summed, np.concatenate([found[2] for found in each])


def alone(case: Case) -> Found:
    """What one process computes, which knows nothing of who would share with it; each is computed once."""
    return _alone(replace(case, exchange=Case.exchange, size=Case.size))


@cache
def _alone(case: Case) -> Found:
    return computed(case, None)


def errors(found: Found, truth: Found) -> tuple[float, float, float]:
    """Of the loss, of all gradients (norm of the error over the norm) and of real slots' logits, each relative."""
    difference = sum(float(np.square(found[1][name] - g).sum()) for name, g in truth[1].items())
    norm = sum(float(np.square(g).sum()) for g in truth[1].values())
    return (
        abs(found[0] - truth[0]) / abs(truth[0]),
        (difference / norm) ** 0.5,
        float(np.abs(found[2] - truth[2]).max() / np.abs(truth[2]).max()),
    )


# Ways to do it wrong, and stand-ins for a GPU -----------------------------------------------------


def _cut_at_shares(batch: Batch, backend: Backend, context: ContextShard | None) -> Layout:
    """Documents end where a rank's share does."""
    assert context
    layout = layout_of(batch, backend, context)
    share = batch.tokens.numel() // context.size
    cut = [
        [max(start, at), min(end, at + share)]
        for start, end in batch.spans
        for at in range(0, batch.tokens.numel(), share)
        if max(start, at) < min(end, at + share)
    ]
    return layout._replace(spans=torch.tensor(cut))


CHANGES: dict[str, Callable[[], list[Any]]] = {
    "": list,
    "local": lambda: [mock.patch.object(encoder_module, "layout_of", _cut_at_shares)],
    "causal": lambda: [
        mock.patch.object(F, "scaled_dot_product_attention", partial(F.scaled_dot_product_attention, is_causal=True))
    ],
    "varlen": lambda: [
        mock.patch.object(Encoder, "_backend", return_value="varlen"),
        mock.patch.object(import_module("pretrain.model.attention.choice"), "VARLEN", varlen_kernel),
    ],
}


BACKENDS = ["flash_cpu", "per_document", *(pytest.param(each, marks=pytest.mark.slow) for each in ("dense", "varlen"))]
ARCHITECTURES = ["esm2_60k", pytest.param("modern_60k", marks=pytest.mark.launch)]


# The same function --------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ARCHITECTURES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_ranks_together_compute_what_one_computes(
    context_ranks: Ranks, preset: str, backend: Backend, exchange: Exchange
) -> None:
    changed = "varlen" if backend == "varlen" else ""
    for batch in ("packed", "whole", "pads"):
        case = Case(preset, exchange, backend, batch, changed=changed)
        found = errors(together(context_ranks, case), alone(case))
        print(case.batch, found)
        assert max(found) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("preset", "exchange"), [("esm2_60k", "ulysses"), ("esm2_60k", "all_gather"), ("modern_60k", "all_gather")]
)
def test_four_ranks(context_ranks: Ranks, preset: str, backend: Backend, exchange: Exchange) -> None:
    changed = "varlen" if backend == "varlen" else ""
    for batch in ("packed", "pads"):
        case = Case(preset, exchange, backend, batch, size=4, changed=changed)
        assert max(errors(together(context_ranks, case), alone(case))) < 1e-13


@pytest.mark.parametrize("changed", ["local", "causal"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_control_other_attention_is_far_off(context_ranks: Ranks, changed: str, exchange: Exchange) -> None:
    """Attention to one's own share alone, or to what stands before: what other ways to share a sequence do."""
    for batch in ("packed", "whole"):
        right = Case(exchange=exchange, batch=batch, backend="per_document")
        found = errors(together(context_ranks, replace(right, changed=changed)), alone(right))
        print(exchange, changed, batch, found)
        assert min(found) > 1e-4
        assert max(found) > 1e-2


@pytest.mark.parametrize("preset", ARCHITECTURES)
@pytest.mark.parametrize("backend", ["flash_cpu", "per_document"])
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_rounding_is_that_of_one_process(
    context_ranks: Ranks, preset: str, backend: Backend, exchange: Exchange, autocast: torch.dtype | None
) -> None:
    case = Case(preset, exchange, backend, dtype=torch.float32, autocast=autocast)
    truth = alone(replace(case, dtype=torch.float64, autocast=None))
    of_one, of_all = errors(alone(case), truth), errors(together(context_ranks, case), truth)
    print(f"{of_all}, alone {of_one}")
    assert 0 < of_all[1] <= 3 * of_one[1]
    assert 0 < of_all[2] <= 3 * of_one[2]
    assert of_all[0] < (1e-6 if autocast is None else 1e-2)  # the errors of a sum cancel out, by chance


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("backend", ["flash_cpu", "per_document"])
@pytest.mark.parametrize("preset", ARCHITECTURES)
def test_dropout_and_checkpointing(context_ranks: Ranks, exchange: Exchange, backend: Backend, preset: str) -> None:
    """Masks are those of the whole batch; collectives are repeated in the backward pass, by all ranks alike."""
    dropped = Case(preset, exchange, backend, dropout=0.3)
    assert errors(alone(dropped), alone(replace(dropped, dropout=0.0)))[1] > 1e-2
    for case in (dropped, replace(dropped, checkpointing="selective"), replace(dropped, checkpointing="layer")):
        assert max(errors(together(context_ranks, case), alone(dropped))) < 1e-13


def _gradients_of_each(case: Case, context: ContextShard) -> tuple[float, dict[str, float]]:
    """Loss, and the largest magnitude in each parameter's gradient; -1 where it has none."""
    model, batch = case.model(), BATCHES[case.batch]()
    model.encoder.context = context
    loss = model(batch.share(context.rank, context.size)).sum()
    loss.backward()
    largest = {n: -1.0 if p.grad is None else float(p.grad.abs().max()) for n, p in model.named_parameters()}
    return float(loss.detach()), largest


@pytest.mark.parametrize("backend", ["flash_cpu", "per_document", "dense"])
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("checkpointing", ["none", "layer"])
def test_every_parameter_has_a_gradient_on_every_rank(
    context_ranks: Ranks, backend: Backend, exchange: Exchange, checkpointing: Checkpointing
) -> None:
    """DDP waits for every parameter, and every rank for every collective."""
    for batch in ("pads", "idle"):
        case = Case("modern_60k", exchange, backend, batch, checkpointing=checkpointing)
        first, second = context_ranks.run(case, _gradients_of_each)
        assert (first[0] > 0) == (batch == "pads")
        assert second[0] == 0
        assert min(*first[1].values(), *second[1].values()) >= 0  # none is missing
        assert not any(second[1][name] for name in second[1] if name.startswith("head"))
        if batch == "idle":
            assert not any((*first[1].values(), *second[1].values()))


# What it is for -----------------------------------------------------------------------------------


def _kept_bytes(case: Case, context: ContextShard | None) -> int:
    model, batch = case.model(), BATCHES[case.batch]()
    model.encoder.context = context
    return saved_bytes(model, batch.share(context.rank, context.size) if context else batch)


@pytest.mark.parametrize("preset", ARCHITECTURES)
@pytest.mark.parametrize("checkpointing", ["none", "selective", "layer"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_each_of_two_ranks_keeps_half(
    context_ranks: Ranks, preset: str, checkpointing: Checkpointing, exchange: Exchange
) -> None:
    ratios = {}
    for backend in ("flash_cpu", "per_document"):
        case = Case(preset, exchange, backend, "whole", dtype=torch.float32, checkpointing=checkpointing, layers=8)
        each = context_ranks.run(case, _kept_bytes)
        ratios[backend] = max(each) / (_kept_bytes(case, None) / 2)
    print(preset, checkpointing, exchange, ratios)
    assert ratios["flash_cpu"] < 1.15


def _summed_halves(case: Case, context: ContextShard) -> Tensor:
    gradient = torch.full((WORLD, 2, 1, 1), 1.0 if context.rank == 0 else 2.0**-9, dtype=torch.bfloat16)
    return scatter_sum(gradient, context.name).float().flatten()


def test_gradients_of_gathered_keys_are_summed_in_float32(context_ranks: Ranks) -> None:
    """In bfloat16, 1 + 2**-9 is 1, as often as one adds it."""
    for found in context_ranks.run(Case(size=4), _summed_halves):
        assert found.tolist() == [1 + 2**-7] * 2


def _compiled(case: Case, context: ContextShard) -> tuple[float, int, int]:
    """Largest relative difference of a parameter's gradient to that without compilation; graphs, graph breaks."""
    from torch._dynamo.utils import counters

    plain, model = case.model(), case.model()
    torch._dynamo.reset()
    counters.clear()
    compile_layers(model.encoder, backend="aot_eager")
    batch = BATCHES[case.batch]().share(context.rank, context.size)
    for each in (plain, model):
        each.encoder.context = context
        each(batch).sum().backward()
    found = gradients(model)
    worst = max(float((found[n] - g).norm() / g.norm()) for n, g in gradients(plain).items())
    graphs = counters["stats"]["unique_graphs"], len(counters["graph_break"])
    torch._dynamo.reset()
    return worst, *graphs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exchange", "preset", "checkpointing"),
    [("ulysses", "modern_60k", "selective"), ("all_gather", "esm2_60k", "none")],
)
def test_compiled_layers_are_whole_graphs(
    context_ranks: Ranks, exchange: Exchange, preset: str, checkpointing: Checkpointing
) -> None:
    """The exchanges stand in the graphs; through the compiler's front end, as in test_pretrain_compute."""
    case = Case(preset, exchange, dtype=torch.float32, checkpointing=checkpointing)
    for worst, graphs, breaks in context_ranks.run(case, _compiled):
        assert worst < 1e-5
        assert graphs == 2  # the last layer's is another, as it always is
        assert breaks == 0
