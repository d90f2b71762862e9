"""Objectives, and batches of random proteins with labels for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data.batches.batch import Batch, Targets
from finetune.labels.columns import LabelColumns
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from support.inputs.flat_batches import document, pack


def task(name: str, kind: str, outputs: int = 1, classes: int = 0, **settings: Any) -> Task:
    """An objective; numbers have mean 1 and standard deviation 2, classes `classes` training labels more each."""
    numbers = kind == "regression"
    named = tuple(f"{name}_{number}" for number in range(outputs))
    counts = np.arange(1, classes + 1) + np.arange(outputs)[:, None]
    return Task(
        settings=TaskSettings(name=name, type=kind, **settings),  # type: ignore[arg-type]
        outputs=named if outputs > 1 else (name,),
        classes=tuple(f"class_{number}" for number in range(classes)),
        mean=np.full(outputs, 1.0 if numbers else 0.0),
        std=np.full(outputs, 2.0 if numbers else 1.0),
        class_counts=counts.astype(np.int64),
    )


def targets(slots: Sequence[int], labels: Sequence[float], outputs: Sequence[int] = (), **columns: Any) -> Targets:
    """Targets at `slots`; of output 0, exact, of record 0, without a linker or a partner unless `columns` say."""
    given = {"outputs": list(outputs) or [0] * len(slots), **columns}
    tensors = [
        torch.tensor(given.get(name, [0] * len(slots)), dtype=torch.int8 if name == "censoring" else torch.int64)
        for name in LabelColumns._fields
    ]
    slot_tensor = torch.tensor(list(slots), dtype=torch.int64)
    return Targets(slot_tensor, torch.tensor(list(labels), dtype=torch.float32), LabelColumns(*tensors))


EVERY_TYPE = (
    task("affinity", "regression", outputs=3),
    task("membrane", "binary", classes=2, imbalance="focal"),
    task("place", "multiclass", classes=4, imbalance="pos_weight"),
    task("grade", "ordinal", classes=4),
    task("function", "multilabel", outputs=2, classes=2),
    task("burial", "regression", level="residue"),
    task("state", "multiclass", classes=3, level="residue"),
)
"""Objectives of every type, of sequences and of residues."""

PAIR = task("contact", "binary", classes=2, level="pair")

LENGTHS = ((200, 7, 43, 61), (91, 150, 30))
"""Tokens of the documents in each bin of `labelled`."""


def labelled(*, one_bin: bool = False) -> Batch:
    """Proteins with labels for `EVERY_TYPE`; each objective lacks some.

    Args:
        one_bin: whether they lie in one bin of 600 slots. Shares of 2 ranks end inside of the document of 61 tokens
            then, and those of 4 inside of those of 200 and 150 too.
    """
    bins = [[document(length, 0.0, 100 * length) for length in lengths] for lengths in LENGTHS]
    batch = pack([bins[0] + bins[1]], 600, 7) if one_bin else pack(bins)
    first = [start for start, _ in batch.spans]
    return replace(
        batch,
        targets=(
            targets(
                [first[0], first[0], first[1], first[4], first[6]],
                [1.5, -100.0, 0.0, 3.0, 2.0],
                [0, 2, 1, 0, 2],
                censoring=[0, 0, 0, -1, 1],
            ),
            targets([first[1], first[3], first[5]], [0.0, 1.0, 1.0]),
            targets([first[0], first[2], first[4]], [3.0, 0.0, 1.0]),
            targets([first[2], first[3], first[4], first[5]], [0.0, 1.0, 3.0, 2.0]),
            targets([first[0], first[0], first[3]], [0.0, 1.0, 0.0], [0, 1, 1]),
            targets([first[0] + 1, first[0] + 150, first[2] + 3, first[5] + 100], [0.5, 2.0, -1.0, 4.0]),
            targets([first[3] + 5, first[4] + 40, first[4] + 41], [2.0, 0.0, 1.0]),
        ),
    )


def without_labels(batch: Batch) -> Batch:
    """The same proteins, none of them labelled."""
    return replace(batch, targets=tuple(of.between(0, 0) for of in batch.targets))


def wide(model: nn.Module) -> None:
    """Random values everywhere, so that no head is near 0."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        std = 1.3 * parameter.shape[1] ** -0.5 if parameter.ndim == 2 else 0.3
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        parameter.data.normal_(centre, std, generator=generator)


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """All parameters' gradients of `loss`, one after the other; a parameter without one is an error."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None for grad in found)
    return torch.cat([grad.flatten() for grad in found if grad is not None])
