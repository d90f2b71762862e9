"""Small models against float64: outputs and gradients, whatever computes them.

In: a place. Out: findings, each an error over the error that the dense reference makes in the same precision. Kept:
the truths, by shape.

float64 is the truth. In a lower precision the reference differs from it by rounding, and so does what is tested, which
may be off by three times as much: `tests/pretrain/model/test_pretrain_attention.py` gives the reason, and tests it on a
CPU. Documents are laid out in ways that training hardly meets and boundaries suffer from: pads longer than every
document, many empty documents, and a batch without any document.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.gpu.machine import Place
from benchmarks.gpu.results import Bar, Finding
from benchmarks.proteins import draw, filled
from data.alphabet import PAD
from data.batches.batch import Batch
from data.batches.collate import collate
from data.settings import DataSettings
from pretrain.model.attention.choice import Request
from pretrain.model.compilation import compile_layers
from pretrain.model.context import ContextShard
from pretrain.model.encoder import Checkpointing
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import Architecture, EsmShape

BAR = Bar(3.0, "lower", "the dense reference's error")
HEADS = {16: (64, 4), 24: (96, 4), 32: (128, 4), 64: (128, 2)}
"""Width and number of heads that give heads of so many channels."""
Autocast = torch.dtype | None
NAMES = {None: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
HOST = torch.device("cpu")


class Answer(NamedTuple):
    """What a model computes from one batch, on the host in float64."""

    losses: Tensor
    """(targets,)."""
    logits: Tensor
    """(real slots, V)."""
    gradients: Tensor
    """Gradients of the summed loss by all parameters, concatenated."""


class Errors(NamedTuple):
    """How far an answer is from another."""

    losses: float
    """Norm of the error of all losses, over their norm."""
    logits: float
    """Largest error over the largest logit."""
    gradients: float
    """Norm of the error of all gradients together, over their norm."""


def batch_of(bins: Sequence[Sequence[int]], slots: int, seed: int = 0, *, pinned: bool = False) -> Batch:
    """Bins of `slots` slots with random proteins of these lengths; most of the documents that would fit are empty."""
    settings = DataSettings(sources=("-",), bin_tokens=slots, crop_tokens=slots)
    made = [filled(draw(np.array(lengths), seed + number)) for number, lengths in enumerate(bins)]
    return collate(made, settings, range(len(bins)), pinned=pinned)


@lru_cache(maxsize=2)
def layouts(dry: bool) -> dict[str, Batch]:
    """Batches by what makes them hard."""
    found = {
        "mixed": batch_of([[200, 7, 43, 61], [91, 150, 30]], 320),
        "pads longer than documents": batch_of([[20, 9], [40, 12]], 320, 10),
        "no pads": batch_of([[128, 128, 64]], 320, 20),
    }
    if not dry:
        found["long"] = batch_of([[1024, 700, 130, 64], [513, 257, 1000]], 2048, 30)
    return found


def shape_of(architecture: Architecture, head_dim: int) -> EsmShape:
    """Three layers with heads of `head_dim` channels."""
    dim, heads = HEADS[head_dim]
    return EsmShape(3, dim, heads, architecture=architecture, token_dropout=architecture == "esm2")


def perturbed(
    shape: EsmShape, attention: Request, device: torch.device, dtype: torch.dtype = torch.float32
) -> MaskedLanguageModel:
    """A model with random values everywhere, so large that attention is far from uniform; the same on every device."""
    model = MaskedLanguageModel(shape, attention)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(model.named_parameters()):
        std = 1.3 * parameter.shape[1] ** -0.5 if parameter.ndim == 2 else 0.1
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        parameter.data.normal_(centre, std, generator=generator)
    return model.to(device, dtype)


def answer(
    model: MaskedLanguageModel, batch: Batch, autocast: Autocast = None, context: ContextShard | None = None
) -> Answer:
    """The answer to one batch; with a context, that of all of its ranks together.

    Raises:
        AssertionError: an output, at a pad slot too, or a gradient is not finite, or a parameter has none.
    """
    model.zero_grad()
    model.encoder.context = context
    device = next(model.parameters()).device
    placed = (batch.share(context.rank, context.size) if context else batch).to(device)
    with torch.autocast(device.type, autocast or torch.bfloat16, enabled=autocast is not None):
        logits = model.logits(placed).detach()
        losses: Tensor = model(placed, each=True)
    torch.autograd.backward(losses.sum())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name}: no gradient"
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    mine = Answer(*(part.cpu().double() for part in (losses.detach(), logits, gradients)))
    for name, tensor in mine._asdict().items():
        assert bool(tensor.isfinite().all()), f"{name}: not finite"
    each = [mine] * (context.size if context else 1)
    if context and context.size > 1:
        dist.all_gather_object(each, mine, context.group)
    return Answer(
        torch.cat([one.losses for one in each]),
        torch.cat([one.logits for one in each])[batch.tokens != PAD],
        torch.stack([one.gradients for one in each]).sum(0),
    )


def errors(found: Answer, truth: Answer) -> Errors:
    """How far `found` is from the truth."""
    return Errors(
        float((found.losses - truth.losses).norm() / truth.losses.norm()),
        float((found.logits - truth.logits).abs().max() / truth.logits.abs().max()),
        float((found.gradients - truth.gradients).norm() / truth.gradients.norm()),
    )


def true_answer(shape: EsmShape, batch: Batch, device: torch.device) -> Answer:
    """The dense reference's in float64: on the host, unless the batch takes many seconds there."""
    at = HOST if batch.tokens.numel() <= 1024 else device
    return answer(perturbed(shape, "dense", at, torch.float64), batch)


@lru_cache(maxsize=16)
def truths(shape: EsmShape, device: torch.device) -> dict[str, Answer]:
    """True answers to all layouts."""
    return {name: true_answer(shape, batch, device) for name, batch in layouts(device.type != "cuda").items()}


@lru_cache(maxsize=32)
def of_reference(shape: EsmShape, device: torch.device, autocast: Autocast) -> dict[str, Errors]:
    """Errors of the dense reference in one precision, on the device."""
    model, truth = perturbed(shape, "dense", device), truths(shape, device)
    some = layouts(device.type != "cuda")
    return {name: errors(answer(model, batch, autocast), truth[name]) for name, batch in some.items()}


def worst(
    what: str,
    found: Iterable[tuple[str, Errors, Errors]],
    reference: str,
    kinds: Sequence[str] = Errors._fields,
    note: str = "",
) -> Finding:
    """The largest error over the reference's; the note shows all errors of that layout.

    Args:
        what: name of the finding.
        found: by layout: its name, our errors, and those of the reference.
        reference: name of the reference.
        kinds: which of the errors are judged.
        note: text to be added to the note.
    """
    largest, shown = 0.0, ""
    for layout, ours, theirs in found:
        pairs = [(kind, getattr(ours, kind), getattr(theirs, kind)) for kind in kinds]
        over = max(a / b for _, a, b in pairs)
        if over >= largest:
            largest = over
            shown = f"{layout}: " + ", ".join(f"{kind} {a:.1e} ({reference} {b:.1e})" for kind, a, b in pairs)
    return Finding(what, largest, note="; ".join(filter(None, [shown, note])), judged=True)


def judged(
    what: str, shape: EsmShape, place: Place, model: MaskedLanguageModel, autocast: Autocast, note: str = ""
) -> Finding:
    """The worst of a model's errors in logits and gradients over the reference's."""
    truth, reference = truths(shape, place.device), of_reference(shape, place.device, autocast)
    found = (
        (name, errors(answer(model, batch, autocast), truth[name]), reference[name])
        for name, batch in layouts(place.dry).items()
    )
    return worst(what, found, "reference", ("logits", "gradients"), note)


def backends(place: Place, architecture: Architecture, head_dim: int) -> Iterator[Finding]:
    """Every backend in the precisions that it takes, on every layout."""
    shape = shape_of(architecture, head_dim)
    for backend, autocast in _taken(place):
        model = perturbed(shape, backend, place.device)
        yield judged(f"{backend} {NAMES[autocast]}", shape, place, model, autocast)


def _taken(place: Place) -> list[tuple[Request, Autocast]]:
    takes: list[tuple[Request, Autocast]] = [("flash_cpu", torch.bfloat16), ("flash_cpu", None), ("per_document", None)]
    if not place.dry:
        takes = [
            ("varlen", torch.bfloat16),
            ("varlen", torch.float16),
            ("per_document", None),
            ("per_document", torch.bfloat16),
        ]
    return takes


def without_documents(place: Place, architecture: Architecture) -> Iterator[Finding]:
    """Share of the parameters that get a gradient, of 0, from a bin of pads alone, by backend."""
    for backend, autocast in _taken(place):
        model = perturbed(shape_of(architecture, 16), backend, place.device)
        with torch.autocast(place.device.type, autocast or torch.bfloat16, enabled=autocast is not None):
            loss = model(batch_of([[320]], 320).idle().to(place.device)).sum()
        loss.backward()
        wrong = [n for n, p in model.named_parameters() if p.grad is None or bool((p.grad != 0).any())]
        share = 1 - len(wrong) / len(list(model.parameters()))
        yield Finding(f"{backend} {NAMES[autocast]}", share, note=", ".join(wrong[:3]), judged=True)


def compiled(place: Place, architecture: Architecture) -> Iterator[Finding]:
    """Compiled layers, in a dry run through the compiler's front end alone."""
    shape = shape_of(architecture, 16 if place.dry else 64)
    model = perturbed(shape, "auto", place.device)
    compile_layers(model.encoder, backend="aot_eager" if place.dry else "inductor")
    yield judged("", shape, place, model, torch.bfloat16)


def checkpointing(place: Place, architecture: Architecture) -> Iterator[Finding]:
    """Both kinds of checkpointing; notes whether a bit changed, as it may with a GPU's order of sums."""
    shape = shape_of(architecture, 16)
    batch = layouts(place.dry)["mixed"]
    plain = answer(perturbed(shape, "auto", place.device), batch, torch.bfloat16)
    modes: tuple[Checkpointing, ...] = ("selective", "layer")
    for mode in modes:
        model = perturbed(shape, "auto", place.device)
        model.encoder.checkpointing = mode
        same = answer(model, batch, torch.bfloat16)
        equal = torch.equal(same.gradients, plain.gradients)
        note = "gradients bit-equal to none's" if equal else f"from none's by {errors(same, plain).gradients:.1e}"
        yield judged(mode, shape, place, model, torch.bfloat16, note)


def transformers_logits(place: Place, preset: str) -> Iterator[Finding]:
    """Logits of all documents, packed here and padded in transformers, in float32, and in float64 to tell rounding."""
    from pretrain.model.presets import PRESETS
    from pretrain.model.weights.io import to_transformers

    batch = layouts(place.dry)["mixed"].to(place.device)
    documents = [batch.tokens[start:end] for start, end in batch.spans]
    rows = nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=PAD)
    real = rows != PAD
    for dtype in (torch.float32, torch.float64):
        ours = perturbed(PRESETS[preset], "auto", place.device, dtype).eval()
        theirs = to_transformers(perturbed(PRESETS[preset], "auto", HOST))
        move: Callable[..., nn.Module] = theirs.to
        move(place.device, dtype)
        with torch.no_grad():
            expected = theirs(input_ids=rows, attention_mask=real.long()).logits[real]
            found = ours.logits(batch)[batch.tokens != PAD]
        difference = float((found - expected).abs().max() / expected.abs().max())
        exact = dtype == torch.float64
        yield Finding("float64" if exact else "", difference, note=f"{type(theirs).__name__}", judged=not exact)
