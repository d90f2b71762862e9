"""What an engine has to exchange in a step, by its own rules.

In: an engine, a model, the size of a step. Out: bytes by kind of collective, of one rank. Nothing is kept.

A collective counts as its whole tensor: an all-reduce's tensor, an all-gather's output, a reduce-scatter's input, what
an all-to-all sends. Everything is sent in float32, except the weights of layers that engines gather in a bf16 run.

In the comments: P bytes of all parameters, L of those of the layers, R of the rest, n ranks, m micro-batches.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import nn

from pretrain.model.attention.choice import choose
from pretrain.model.context import Exchange
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from zymogen.trainer.collectives import balance
from zymogen.trainer.flags import NO_FLAGS
from zymogen.trainer.optimizer.kinds import parameter_groups
from zymogen.trainer.optimizer.muon import newton_schulz_cost
from zymogen.trainer.optimizer.settings import OptimizerSettings

BFLOAT, FLOAT, DOUBLE, INTEGER = 2, 4, 8, 8
"""Bytes of a number."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way of spreading a run."""

    engine: str
    """Name of a file in `accelerate_configs/`."""
    processes: int
    exchange: Exchange | None = None
    """The exchange with which all processes share every batch; None where each has its own batches."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    precision: Literal["no", "bf16"] = "no"

    @property
    def name(self) -> str:
        """The engine, and the exchange for attention, the optimizer or the precision if it is no usual one."""
        others = [self.exchange, self.optimizer if self.optimizer != "adamw" else None]
        others += [self.precision] if self.precision != "no" else []
        return "/".join([self.engine, *(other for other in others if other)])

    @property
    def context(self) -> int:
        """Number of ranks that share a batch."""
        return self.processes if self.exchange else 1

    @property
    def shards(self) -> int:
        """Number of ranks that the model is cut over, where it is."""
        return 2 if self.engine == "hsdp" else self.processes

    def gathered(self, name: str, parameter: nn.Parameter) -> int:
        """Bytes of a number of this parameter where it is gathered for a forward or backward pass."""
        return BFLOAT if self.precision == "bf16" and ".layers." in name and parameter.ndim > 1 else FLOAT


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank trains in a step."""

    preset: str
    bin_tokens: int
    """Slots of a micro-batch, over the ranks that share it."""
    micro_batches: int
    bins_per_step: int
    """Over all ranks."""
    device: str
    """Type of the device."""

    @property
    def model(self) -> nn.Module:
        """The model, without memory for its parameters."""
        with torch.device("meta"):
            return MaskedLanguageModel(PRESETS[self.preset])


def expected(case: Case, work: Work) -> dict[str, int]:
    """Bytes of one rank in a step, by kind."""
    engine = _zero(case, work) if case.engine.startswith("zero") else _torch(case, work)
    # The step itself: targets, digests and what ranks tell each other before the first forward pass; then, after the
    # update, loss sums, of each bin its own.
    step = {"all_reduce": INTEGER * (1 + work.bins_per_step + len(NO_FLAGS)) + FLOAT * work.bins_per_step}
    return dict(Counter(engine) + Counter(step) + Counter(_attention(case, work)) + Counter(_muon(case, work)))


def weighted(by_kind: Mapping[str, int]) -> int:
    """Bytes of all kinds as one number: an all-reduce counts twice, as a reduce-scatter and an all-gather.

    On a ring, a rank sends and receives `(n - 1) / n` of this.
    """
    return sum(size * (2 if kind == "all_reduce" else 1) for kind, size in by_kind.items())


def _torch(case: Case, work: Work) -> dict[str, int]:
    m, parameters = work.micro_batches, dict(work.model.named_parameters())
    if case.engine == "ddp":  # with the last micro-batch; gradients of the others are added up locally
        return {"all_reduce": FLOAT * sum(p.numel() for p in parameters.values())}
    # FSDP2 cuts along the first dimension, padded to a multiple of n. With every micro-batch a layer is gathered for
    # the forward pass and again for the backward pass, and gradients are reduced. The rest of the model is the
    # outermost unit and stays gathered in between: m (2 L + R) and m (L + R).
    padded = {name: -(-p.shape[0] // case.shards) * case.shards * prod(p.shape[1:]) for name, p in parameters.items()}
    sizes = {name: padded[name] * case.gathered(name, p) for name, p in parameters.items()}
    layers = sum(size for name, size in sizes.items() if ".layers." in name)
    whole = FLOAT * sum(padded.values())
    exchanged = {"all_gather": m * (sum(sizes.values()) + layers), "reduce_scatter": m * whole}
    exchanged["all_reduce"] = DOUBLE  # for the norm of the gradient
    if case.engine == "hsdp":  # copies of the model add up their shards' gradients, with the last micro-batch
        exchanged["all_reduce"] += whole // case.shards
    return exchanged


def _zero(case: Case, work: Work) -> dict[str, int]:
    m, parameters = work.micro_batches, dict(work.model.named_parameters())
    whole = FLOAT * sum(p.numel() for p in parameters.values())
    if case.engine == "zero3":
        # What is no larger than the largest vector stays whole and is gathered once, after the update. The rest is
        # gathered with every micro-batch, and only once in it where the model is small: nothing is dropped that is used
        # again within `stage3_max_reuse_distance`, so a model below that, like this one, is whole from the forward pass
        # to the end of the backward pass. Each parameter is padded to a multiple of n. The norm, and whether a gradient
        # overflowed, are in float64.
        kept = max(p.numel() for p in parameters.values() if p.ndim < 2)
        padded = {name: -(-p.numel() // case.processes) * case.processes for name, p in parameters.items()}
        cut = [name for name, p in parameters.items() if p.numel() > kept]
        vectors = FLOAT * sum(padded[name] for name in parameters.keys() - cut)
        gathered = m * sum(padded[name] * case.gathered(name, parameters[name]) for name in cut) + vectors
        return {"all_gather": gathered, "reduce_scatter": m * FLOAT * sum(padded.values()), "all_reduce": 2 * DOUBLE}
    # Each rank needs the gradients of its part, and all ranks need all parts after the update. Stage 1 adds up
    # micro-batches first, stage 2 keeps too little for that. Then come the norm, and whether a gradient overflowed.
    reductions = 1 if case.engine == "zero1" else m
    return {"reduce": reductions * whole, "all_gather": whole, "all_reduce": 2 * FLOAT}


def _muon(case: Case, work: Work) -> dict[str, int]:
    """What Muon's matrices need, with the whole model in one round.

    Every rank gets the results of all, each rank's filled up to the largest share. Shards are gathered before.
    """
    if case.optimizer == "adamw":
        return {}
    groups = parameter_groups(work.model, OptimizerSettings(name="muon"))
    blocks = [
        (matrix.shape[0] // group["blocks"], matrix.shape[1])
        for group in groups
        if "blocks" in group
        for matrix in group["params"]
        for _ in range(group["blocks"])
    ]
    shares = [0] * case.processes
    for (rows, columns), rank in zip(
        blocks, balance(tuple(newton_schulz_cost(*of) for of in blocks), case.processes), strict=True
    ):
        shares[rank] += rows * columns
    gathered = sum(rows * columns for rows, columns in blocks) if case.engine != "ddp" else 0
    return {"all_gather": FLOAT * (case.processes * max(shares) + gathered)}


def _attention(case: Case, work: Work) -> dict[str, int]:
    if case.exchange is None:
        return {}
    shape = PRESETS[work.preset]
    one = work.micro_batches * shape.layers * FLOAT * work.bin_tokens * shape.dim  # of all slots: Q, K or V
    if case.exchange == "ulysses":  # each rank its slots' Q, K, V and outputs, and their gradients
        return {"all_to_all": 2 * 4 * one // case.context}
    # K and V of all slots, and their gradients. The CPU's kernel gathers them again for the backward pass.
    backend, _ = choose("auto", work.device, torch.float32, shape.head_dim)
    gathers = 2 if backend == "flash_cpu" else 1
    return {"all_gather": gathers * 2 * one, "reduce_scatter": 2 * one}
