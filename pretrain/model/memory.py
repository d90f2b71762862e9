"""The memory and the FLOPs that training takes, computed before there is a model.

In: a shape, sizes, the optimizer, and how it is spread and computed. Out: bytes of one process; FLOPs. Kept: nothing.
Torch is not imported; `zymogen.trainer.telemetry.memory` has what a process uses.

A multiply-add counts as 2. Counted are the matrix products: projections, feed-forward, attention, head. The embedding
lookup, norms, activations, rotary positions and the loss count nothing, nor do pad slots. Training is three times the
forward pass, because each product's backward pass is two of its size; what activation checkpointing or a fused
attention kernel computes a second time is not counted. So these are the FLOPs of *model FLOPs utilization* (PaLM,
Chowdhery et al. 2022, arXiv:2204.02311, appendix B), with two differences: PaLM's 6 N a token counts every token's
head, and its attention term a full context, where here the head is counted at the targets and attention inside
documents.
"""

from collections.abc import Callable
from typing import NamedTuple

from pretrain.machine import Machine
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.settings import Checkpointing
from zymogen.trainer.optimizer.kinds import optimizer_class

MEMORY_SHARE = 0.6
"""Share of a GPU's memory, or of the host's memory divided among its processes, that a proposal may use."""
PROCESS_BYTES: dict[str, float] = {"cpu": 1.27e9, "cuda": 1.5e9}
"""Memory of a process besides the model: on a CPU the libraries (0.7 GB), what they prepare for every new shape of a
matrix product in the first minutes (up to 0.5 GB), and the export and the report at the end (0.35 GB, partly in memory
that is free by then); on a GPU its context and workspaces, on the GPU."""

LEAST_PROCESS_BYTES = 0.4e9
"""The same on a CPU in a run of a few shapes, whose export and report find memory that is free again."""

_KEPT: dict[tuple[bool, bool], dict[Checkpointing, float]] = {
    (False, False): {"none": 61.7, "selective": 24.4, "layer": 4.6},
    (False, True): {"none": 34.9, "selective": 16.2, "layer": 4.4},
    (True, False): {"none": 78.3, "selective": 32.3, "layer": 4.7},
    (True, True): {"none": 43.1, "selective": 20.1, "layer": 4.5},
}
"""Bytes a slot, channel and layer that are kept for the backward pass, by (is modern, in 16 bits): the table of
docs/compute.md, which `python -m benchmarks.memory` prints."""
_FLOAT32 = 4
_FOR_A_MOMENT = 12 * _FLOAT32
"""Bytes a slot and channel that the backward pass of one layer takes besides: three gradients as wide as its
feed-forward."""
_SLOTS = 16_384
"""Slots of the default `data.bin_tokens`, for which the table of presets is made."""


class MemoryEstimate(NamedTuple):
    """Bytes of one process, of a GPU's memory if it trains on one, else of the host's."""

    libraries: float
    """What a process takes that trains nothing."""
    state: float
    """Parameters, gradients and the optimizer's moments."""
    activations: float
    """What a forward pass keeps, and what the backward pass takes besides."""
    saves: float
    """The copy from which a checkpoint is written; 0 on a GPU, as it is on the host."""

    @property
    def total(self) -> float:
        """The sum of all."""
        return sum(self)


def memory_of(
    shape: EsmShape, slots: int, machine: Machine, optimizer: str, checkpointing: Checkpointing = "none"
) -> MemoryEstimate:
    """The memory of one process that trains this model on that machine.

    Args:
        shape: of the model.
        slots: that one process computes at once.
        machine: its engine, processes, precision and kind.
        optimizer: as `optimizer.name`.
        checkpointing: what the backward pass computes again.
    """
    return MemoryEstimate(
        PROCESS_BYTES[machine.kind],
        state_bytes(shape.num_parameters, machine.engine, machine.processes, optimizer),
        activation_bytes(shape, slots, is_16_bit=machine.precision != "no", checkpointing=checkpointing),
        saved_bytes(shape.num_parameters, machine.processes, optimizer) if machine.kind == "cpu" else 0.0,
    )


def bins_that_fit(free_bytes: float, most: int, memory: Callable[[int], float]) -> int:
    """Bins of one forward pass for which memory is free, at least 1: as few as need no more passes for a step.

    Args:
        free_bytes: that one process could take, of which `MEMORY_SHARE` are used.
        most: bins of a step that one process has.
        memory: bytes of a process by the bins of its forward pass; each bin takes as much as any other.
    """
    without = memory(0)
    fit = int((MEMORY_SHARE * free_bytes - without) / (memory(1) - without))
    passes = -(-most // min(max(fit, 1), most))
    return -(-most // passes)


def require_memory(total_bytes: float, machine: Machine) -> None:
    """Refuse training that the kernel would kill without a message.

    Args:
        total_bytes: memory of one process, with `PROCESS_BYTES`.
        machine: what trains; only a limit of its container or job is enforced, as a host may swap.

    Raises:
        ValueError: it takes more than such a limit.
    """
    least = total_bytes - PROCESS_BYTES["cpu"] + LEAST_PROCESS_BYTES
    if machine.kind == "cpu" and machine.limits and least > machine.memory_bytes:
        raise ValueError(
            f"not enough memory: training takes about {total_bytes / 1e9:.1f} GB for each process, which has "
            f"{machine.memory_bytes / 1e9:.1f} GB (limits of this container or job: {machine.limits}): raise it, "
            "or choose a smaller model.preset, data.bin_tokens or compute.checkpointing"
        )


def saved_bytes(num_parameters: int, processes: int = 1, optimizer: str = "adamw") -> float:
    """Bytes of the host that one process keeps for saves: its part of parameters and moments, whatever the engine."""
    return num_parameters * _FLOAT32 * (1 + optimizer_class(optimizer).moments) / processes


def state_bytes(num_parameters: int, engine: str = "single", processes: int = 1, optimizer: str = "adamw") -> float:
    """Bytes of one process for parameters, gradients and the optimizer's moments, in float32.

    Args:
        num_parameters: of the whole model.
        engine: name of the engine. DDP keeps a second copy of the gradients, to exchange them, and ZeRO one of the
            weights, to update it; HSDP's copies are not counted.
        processes: number of processes.
        optimizer: as `optimizer.name`.
    """
    moments = optimizer_class(optimizer).moments
    whole, shared = {
        "single": (2 + moments, 0),
        "ddp": (3 + moments, 0),
        "zero1": (2, 1 + moments),
        "zero2": (1, 2 + moments),
        "zero3": (0, 3 + moments),
    }.get(engine, (0, 2 + moments))
    return num_parameters * _FLOAT32 * (whole + shared / processes)


def activation_bytes(
    shape: EsmShape, slots: int, *, is_16_bit: bool = True, checkpointing: Checkpointing = "none"
) -> float:
    """Bytes that a forward pass over `slots` keeps for its backward pass, and what that takes for a moment.

    With checkpointing, what one layer computes again is there as well while its backward pass runs.
    """
    kept = _KEPT[shape.is_modern, is_16_bit]
    layers = shape.layers * kept[checkpointing] + (kept["none"] if checkpointing != "none" else 0)
    return slots * shape.dim * (layers + _FOR_A_MOMENT)


def preset_table() -> list[str]:
    """A line for each preset, with layers, width, parameters and the memory to train it, and what that memory is."""
    lines = [f"{'':14}layers   width   parameters   memory"]
    for name, shape in PRESETS.items():
        parameters = shape.num_parameters
        memory = (state_bytes(parameters) + activation_bytes(shape, _SLOTS)) / 1e9
        millions = f"{parameters / 1e6:,.{2 if parameters < 1e6 else 1 if parameters < 1e7 else 0}f} M"
        size = f"{memory:,.{1 if memory < 100 else 0}f} GB"
        lines.append(f"{name:14}{shape.layers:6}{shape.dim:8,}{millions:>13}{size:>9}")
    libraries = f"{PROCESS_BYTES['cpu'] / 1e9:.1f} GB"
    return [
        *lines,
        f"memory of one process: bf16, AdamW, a bin of {_SLOTS:,} slots; without the",
        f"{libraries} that any process takes. data.bin_tokens and",
        "compute.checkpointing lower it (docs/compute.md).",
    ]


# FLOPs ---------------------------------------------------------------------------------------------

BACKWARD_AND_FORWARD = 3


def training_flops(
    shape: EsmShape, tokens: float, squared_lengths: float, targets: float, *, pruned: bool = False
) -> float:
    """FLOPs of forward and backward over some documents; arguments are those of `forward_flops`."""
    return BACKWARD_AND_FORWARD * forward_flops(shape, tokens, squared_lengths, targets, pruned=pruned)


def forward_flops(
    shape: EsmShape, tokens: float, squared_lengths: float, targets: float, *, pruned: bool = False
) -> float:
    """FLOPs of one forward pass over some documents.

    Args:
        shape: shape of the model. A `modern` one has a gated feed-forward of three matrices instead of two.
        tokens: real tokens of all documents, <cls> and <eos> counted.
        squared_lengths: sum over documents of the tokens of each, squared.
        targets: slots that the head predicts.
        pruned: count only the *needed* FLOPs of `encoder_flops`, which reads target slots alone. A model that skips the
            rest is faster, and with `pruned=False` would seem to do work that it leaves out; a share of a device's peak
            is therefore computed with `pruned=True`. For ESM-2 8M that is 12% less, for 35M 6% less.

    Returns:
        FLOPs; the counts may be fractions, such as means over steps.
    """
    dim = shape.dim
    head = targets * (2 * dim * dim + 2 * dim * shape.vocabulary)
    return encoder_flops(shape, tokens, squared_lengths, targets if pruned else tokens) + head


def encoder_flops(shape: EsmShape, tokens: float, squared_lengths: float, read: float) -> float:
    """FLOPs that one forward pass of the encoder needs, where vectors of `read` slots are read.

    What no slot but itself reads is needed in the last layer at those slots alone: queries, what they gather, output
    projection and feed-forward. They are taken to be spread over the tokens evenly, as masks are.

    Args:
        shape: shape of the model.
        tokens: real tokens of all documents.
        squared_lengths: sum over documents of the tokens of each, squared.
        read: slots whose vectors are read; more than `tokens` count as all.
    """
    dim, read = shape.dim, min(read, tokens)
    keys_and_values = 2 * dim * 2 * dim
    feed_forward = (3 if shape.is_modern else 2) * 2 * dim * shape.feed_forward_dim
    of_query = 2 * dim * dim + 2 * dim * dim + feed_forward  # query, output projection
    attention = 4 * dim * squared_lengths  # scores, and the weighted sum of the values
    everywhere = shape.layers * keys_and_values * tokens + (shape.layers - 1) * (of_query * tokens + attention)
    last = of_query * read + (attention * read / tokens if tokens else 0)
    return float(everywhere + last)
