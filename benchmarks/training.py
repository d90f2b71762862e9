"""Training ours and transformers' model side by side: what `benchmarks.model` reports.

In: a `Case`, a device. Out: speeds and bytes of both sides. Kept: nothing.

Both sides train the same weights on the same proteins, in turn. Theirs is `EsmForMaskedLM` with SDPA attention and the
same autocast, on padded batches; both take steps of the same fused AdamW. Making batches is not timed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.proteins import Document, batches, draw, packed, padded, representative, work
from benchmarks.timing import side_by_side
from pretrain.model.initialization import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.memory import training_flops
from pretrain.model.presets import PRESETS, EsmShape
from zymogen import onednn
from zymogen.onednn import EMULATES_BFLOAT16
from zymogen.trainer.telemetry.peak import peak

Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTH = 448
"""Tokens of each protein on which bytes a token are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model in one precision, on proteins up to one length."""

    preset: str
    """Name in `PRESETS`, without ``esm2_``."""
    precision: Precision
    crop: int
    """Longest protein, in tokens."""
    batch_sequences: int
    """Proteins of one padded batch."""
    num_batches: int = 2
    """Padded batches of a round."""
    bin_tokens: int = 4096
    """Slots of one of our bins, about."""

    @property
    def name(self) -> str:
        """The name whose beginning ``--only`` takes."""
        return f"{self.preset}-{self.precision}-{self.crop}"

    @property
    def shape(self) -> EsmShape:
        """Shape of the model."""
        return PRESETS[f"esm2_{self.preset}"]


class Side(NamedTuple):
    """One model with its optimizer and loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    mean_loss: Callable[[Any], Tensor]


def side(model: MaskedLanguageModel) -> Side:
    """A model of ours, ready to train; its batches are those of `packed`."""
    return Side(model, adamw(model), lambda batch: model(batch).sum() / int(batch.counts))


def ours(case: Case, device: torch.device) -> Side:
    """Our model with the weights that seed 0 gives."""
    return side(initial(f"esm2_{case.preset}").to(device))


def theirs(case: Case, device: torch.device) -> Side:
    """`EsmForMaskedLM` with the weights of `ours`; its batches are those of `padded`."""
    return copied(initial(f"esm2_{case.preset}"), device)


def initial(preset: str) -> MaskedLanguageModel:
    """The model of a preset with the weights that seed 0 gives."""
    model = MaskedLanguageModel(PRESETS[preset])
    initialise(model, 0)
    return model


def copied(model: MaskedLanguageModel, device: torch.device) -> Side:
    """Transformers' model with the weights of `model`; its batches are those of `padded`."""
    from pretrain.model.weights.io import to_transformers

    copy = to_transformers(model)
    copy.set_attn_implementation("sdpa")
    copy.to(device).train()  # type: ignore[arg-type]  # transformers wraps `to`, and its types
    return Side(copy, adamw(copy), lambda batch: copy(**batch).loss)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of both sides."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def train(trained: Side, some: Sequence[Any], precision: Precision, device: torch.device) -> Tensor:
    """One step for each batch; the mean loss of the last, in nats."""
    loss = torch.zeros(())
    for batch in some:
        with autocast(precision, device):
            loss = trained.mean_loss(batch)
        torch.autograd.backward(loss)
        trained.optimizer.step()
        trained.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Autocast as the engine's: float32 weights, products in bfloat16 where asked for."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def clock(device: torch.device) -> float:
    """CPU seconds of this process, all threads; on a GPU wall-clock seconds, after waiting for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def own_products(case: Case, device: torch.device) -> float:
    """FLOP/s of the products of a layer's linear maps, forward and backward, each alone on one bin: medians of 5."""
    dim, wide = case.shape.dim, case.shape.feed_forward_dim
    dtype = torch.float32 if device.type == "cpu" and EMULATES_BFLOAT16 else DTYPES[case.precision]
    flops = seconds = 0.0
    for columns, rows in ((dim, 3 * dim), (dim, dim), (dim, wide), (wide, dim)):
        shapes = (case.bin_tokens, columns), (rows, columns), (case.bin_tokens, rows)
        x, weight, gradient = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
        for out, left, right in ((gradient, x, weight.t()), (x, gradient, weight), (weight, gradient.t(), x)):
            product = partial(torch.mm, left, right, out=torch.empty_like(out))
            seconds += side_by_side(product, clock=partial(clock, device))[0]
            flops += 2 * case.bin_tokens * rows * columns
    return flops / seconds


class Turn(NamedTuple):
    """One set of proteins, on which both sides train."""

    tokens: int
    """Real tokens."""
    flops: float
    """Needed FLOPs."""
    our_slots: int
    their_slots: int
    our_seconds: float
    their_seconds: float


class Speeds(NamedTuple):
    """The results of one case, by round; seconds are those of `clock`."""

    random: list[Turn]
    """Theirs in batches as they come."""
    grouped: list[Turn]
    """Theirs in batches grouped by length."""
    peak: float
    """The highest of all rounds, of `torch.mm`."""
    own_products: float
    """FLOPs per second of the model's own products, each by itself through `torch.mm`: median over rounds."""
    losses: tuple[float, float]
    """Mean loss before the first step, of ours and theirs, on the same proteins."""

    @property
    def flops(self) -> float:
        """Needed FLOPs per second of ours: median over all turns."""
        return median(turn.flops / turn.our_seconds for turn in self.random + self.grouped)


def ratio(turns: Sequence[Turn]) -> float:
    """Our speed over theirs, on the same proteins: median over rounds."""
    return median(turn.their_seconds / turn.our_seconds for turn in turns)


def compare(case: Case, device: torch.device, rounds: int) -> Speeds:
    """Train both sides, in turn.

    A round has two sets of proteins, each a representative part of a megabatch: for batches as they come, and for
    batches grouped by length, whose few batches cannot be made of proteins that came together. Ours trains on both,
    packed.

    Raises:
        RuntimeError: the sides begin with different losses, so they are not the same model.
    """
    mine, other = ours(case, device), theirs(case, device)
    losses = _first_losses(mine, other, case, device)
    random, grouped, peaks, products = [], [], [], []
    for round_ in range(rounds):
        with mock.patch.object(onednn, "HAS_ONEDNN", False):  # the bars are shares of what torch itself reaches
            peaks.append(peak(device, DTYPES[case.precision], case.shape.dim, partial(clock, device)))
        products.append(own_products(case, device))
        random.append(_turn(case, mine, other, device, round_, grouped=False))
        grouped.append(_turn(case, mine, other, device, round_, grouped=True))
    return Speeds(random, grouped, max(peaks), median(products), losses)


def _turn(case: Case, mine: Side, other: Side, device: torch.device, round_: int, *, grouped: bool) -> Turn:
    all_batches = batches(case.batch_sequences, case.crop, round_, grouped=grouped)
    chosen = representative(all_batches, case.num_batches, round_)
    documents = [document for batch in chosen for document in batch]
    bins = [b.to(device) for b in packed(documents, case.bin_tokens)]
    padded_batches = on_device(chosen, device)
    order: list[tuple[Side, Sequence[Any]]] = [(mine, bins), (other, padded_batches)]
    seconds = {}
    for trained, some in order if round_ % 2 else reversed(order):
        if device.type == "cuda":  # memory is reserved, and kernels are chosen, at the first batch of a size
            train(trained, some[:1], case.precision, device)
        started = clock(device)
        train(trained, some, case.precision, device)
        seconds[id(trained)] = clock(device) - started
    asked = work(documents)
    return Turn(
        tokens=asked.tokens,
        flops=training_flops(case.shape, *asked, pruned=True),
        our_slots=sum(b.tokens.numel() for b in bins),
        their_slots=sum(b["input_ids"].numel() for b in padded_batches),
        our_seconds=seconds[id(mine)],
        their_seconds=seconds[id(other)],
    )


def _first_losses(mine: Side, other: Side, case: Case, device: torch.device) -> tuple[float, float]:
    """Mean loss of either side on a few proteins before its first step, which also warms up."""
    few = draw(np.array([60, 35, 20]))
    first = float(train(mine, [packed_whole(few, device)], case.precision, device))
    second = float(train(other, [padded_whole(few, device)], case.precision, device))
    if abs(first - second) > 0.01:
        raise RuntimeError(f"{case.name}: the first loss of ours is {first}, of transformers' {second}; must be equal")
    return first, second


def on_device(some: Sequence[Sequence[Document]], device: torch.device) -> list[dict[str, Tensor]]:
    """Padded batches of these proteins."""
    return [{name: tensor.to(device) for name, tensor in padded(documents).items()} for documents in some]


def activation_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Bytes that `forward` keeps for the backward pass: every storage once and whole, parameters left out."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}  # with the tensors, because the address of freed memory would be reused

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters:
            kept[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def bytes_per_token(
    kept_by: Side,
    collate: Callable[[Sequence[Document], torch.device], Any],
    precision: Precision,
    device: torch.device,
) -> float:
    """Bytes that one token more keeps for the backward pass, on proteins of one length, which need no padding.

    This is the difference between two sizes of batch, so that what does not grow with the batch, such as autocast's
    copies of the weights, is not counted. At `LENGTH`, attention costs about what it costs on average.
    """
    kept = []
    for count in (2, 4):
        batch = collate(draw(np.full(count, LENGTH)), device)
        with autocast(precision, device):
            kept.append(activation_bytes(partial(kept_by.mean_loss, batch), kept_by.model))
    return (kept[1] - kept[0]) / (2 * LENGTH)


def packed_whole(documents: Sequence[Document], device: torch.device) -> Any:
    """One bin of these proteins."""
    (batch,) = packed(documents, sum(len(d) for d in documents))
    return batch.to(device)


def padded_whole(documents: Sequence[Document], device: torch.device) -> Any:
    """One padded batch of these proteins."""
    return on_device([documents], device)[0]
