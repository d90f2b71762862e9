"""The model that is fine-tuned: an encoder, and a head for each objective.

In: a `Batch` whose targets carry `LabelColumns`. Out: for each objective the *sum* of its losses, which the step
divides once, by the count over all processes. Kept: the parameters.

A label that is missing is no target, so it adds nothing. Where vectors of a frozen encoder are cached, these stand in
its place.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import torch
from torch import Tensor, nn

from data.batches.batch import Batch
from finetune.adaptation.features import CachedFeatures
from finetune.heads.head import TaskHead
from finetune.heads.input_scale import InputScale
from finetune.heads.pooling import Pooling, context_max, first_slots, rows_of
from finetune.heads.settings import HeadSettings
from finetune.labels.columns import LabelColumns
from finetune.losses.loss import TaskLoss
from finetune.tasks.task import Task
from pretrain.model.attention.choice import Request
from pretrain.model.encoder import Encoder
from pretrain.model.presets import EsmShape


class _HeadInput(NamedTuple):
    """What the head of an objective reads."""

    vectors: Tensor
    """(m, W) of documents or residues."""
    rows: Tensor
    """(n,) int64: which of them each target reads."""
    partners: Tensor | None = None
    """(n,) int64: the second residue of each pair."""
    is_centred: bool = False
    """Whether the mean of the vectors' scale was taken from them."""


class FineTuneModel(nn.Module):
    """An encoder and heads.

    Args:
        shape: of the encoder.
        objectives: what is learned, in the order of `Batch.targets`; their names are distinct.
        heads: settings of all heads.
        attention: backend that the encoder computes attention with.
        features: cached vectors, in the place of the encoder; the model has none then, and nothing pools by attention.
        inputs: what standardises the vectors of sequences and of residues; without one they are read as they are.

    Raises:
        ValueError: the head is not for the level of a task.
    """

    def __init__(
        self,
        shape: EsmShape,
        objectives: Sequence[Task],
        heads: HeadSettings,
        attention: Request = "auto",
        features: CachedFeatures | None = None,
        inputs: Mapping[str, InputScale] | None = None,
    ) -> None:
        """Weights are torch's defaults until `pretrain.model.initialization` or a checkpoint gives them, by name."""
        super().__init__()
        self.shape, self.objectives, self.features = shape, tuple(objectives), features
        self.inputs = dict(inputs or {})
        self.levels = [objective.settings.level for objective in objectives]
        self.encoder = Encoder(shape, attention) if features is None else None
        self.pools = "sequence" in self.levels and heads.pooled_by != "begin"
        has_pooling = self.pools and features is None
        self.pooling = Pooling(shape.dim, heads.pooled_by == "attention") if has_pooling else None
        self.heads = nn.ModuleDict({head_name(o.settings.name): TaskHead(o, heads, shape) for o in objectives})
        self.losses = [TaskLoss(objective) for objective in objectives]

    def forward(self, batch: Batch, each: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Loss sums, ``(objectives,)`` float32: squared errors of z-scores, or nats.

        Without a target of an objective its sum is 0, and every parameter still gets a gradient of 0, because DDP waits
        for all of them.

        Args:
            batch: the input.
            each: return for each objective the numbers of its targets instead, in the order of its labels: z-scores or
                logits ``(n,)``, logits ``(n, C)`` of C classes, or ``(n, C - 1)`` of lying above each threshold;
                `heads.activation` makes predictions of them. Engines that gather parameters do so when the
                model itself is called, not when one of its methods is.
        """
        columns = [LabelColumns(*targets.columns) for targets in batch.targets]
        read = self._cached(batch, columns) if self.features is not None else self._encoded(batch, columns)
        numbers = [
            head(self._scaled(own, level), own.rows, of.outputs, own.partners)
            for head, own, of, level in zip(self.heads.values(), read, columns, self.levels, strict=True)
        ]
        if each:
            return tuple(numbers)
        together = zip(self.losses, numbers, batch.targets, columns, strict=True)
        return torch.stack([loss(own, targets.labels, of) for loss, own, targets, of in together])

    def _scaled(self, read: _HeadInput, level: str) -> Tensor:
        """Vectors as heads read them."""
        scale = self.inputs.get("sequence" if level == "sequence" else "residue")
        if scale is None:
            return read.vectors
        return scale.divided(read.vectors) if read.is_centred else scale(read.vectors)

    def _encoded(self, batch: Batch, columns: Sequence[LabelColumns]) -> Iterator[_HeadInput]:
        """What each head reads of the encoder's vectors, of this rank's slots.

        The last layer is computed whole only where something is pooled or paired.
        """
        assert self.encoder is not None
        context = self.encoder.context
        first, end = context.span(batch.tokens.numel()) if context else (0, batch.tokens.numel())
        firsts = first_slots(batch) if self.pools else first_slots(batch, first, end)
        if self.pools and not len(firsts):  # of a batch of pads; it ties the parameters to a loss of 0
            firsts = firsts.new_zeros(1)
        wanted = [] if self.pools or "sequence" not in self.levels else [firsts]
        wanted += [t.slots for t, level in zip(batch.targets, self.levels, strict=True) if level == "residue"]
        if self.pools or "pair" in self.levels:
            vectors: Tensor = self.encoder(batch)
            parts = iter([vectors.index_select(0, slots - first) for slots in wanted])
        else:
            parts = iter(self.encoder(batch, torch.cat(wanted)).split([len(slots) for slots in wanted]))
        if self.pooling is not None:
            scale, linkers = self.inputs.get("sequence"), self._linkers(batch, columns, firsts)
            of_documents = self.pooling(vectors, batch, firsts, linkers, context, scale)
        elif "sequence" in self.levels:
            of_documents = next(parts)
        for targets, of, level in zip(batch.targets, columns, self.levels, strict=True):
            if level == "sequence":
                is_centred = self.pooling is not None
                yield _HeadInput(of_documents, rows_of(targets.slots, firsts), is_centred=is_centred)
            elif level == "residue":
                yield _HeadInput(next(parts), torch.arange(len(targets.slots), device=targets.slots.device))
            else:
                yield _HeadInput(vectors, targets.slots, targets.slots + of.partner)

    def _linkers(self, batch: Batch, columns: Sequence[LabelColumns], firsts: Tensor) -> Tensor:
        """(D, 2) int64: slots from each document's first to its linker and to its end; (0, 0) without one."""
        assert self.encoder is not None
        linkers = firsts.new_zeros(len(firsts), 2)
        for targets, of, level in zip(batch.targets, columns, self.levels, strict=True):
            if level == "sequence":
                linkers[rows_of(targets.slots, firsts)] = torch.stack([of.skip_start, of.skip_end], 1)
        # Labels are where a document begins, and its linker may lie in the share of another rank.
        return context_max(linkers, self.encoder.context)

    def _cached(self, batch: Batch, columns: Sequence[LabelColumns]) -> Iterator[_HeadInput]:
        """What each head reads of cached vectors."""
        assert self.features is not None
        firsts = first_slots(batch)
        records = torch.zeros_like(firsts)
        for targets, of, level in zip(batch.targets, columns, self.levels, strict=True):
            if level == "sequence":  # once for each document, however many labels it has
                records[rows_of(targets.slots, firsts)] = of.place
        of_documents = self.features.sequence(records) if "sequence" in self.levels else None
        for targets, of, level in zip(batch.targets, columns, self.levels, strict=True):
            rows = torch.arange(len(targets.slots), device=targets.slots.device)
            if level == "sequence":
                assert of_documents is not None
                yield _HeadInput(of_documents, rows_of(targets.slots, firsts))
            elif level == "residue":
                yield _HeadInput(self.features.residue(of.place), rows)
            else:
                both = self.features.residue(torch.cat([of.place, of.place + of.partner]))
                yield _HeadInput(both, rows, rows + len(rows))


def head_name(task: str) -> str:
    """The name of a task's head among a model's parameters, for any name of a task."""
    return f"task_{quote(task, safe=' ')}".replace(".", "%2E")
