"""Targets with further columns: laid out beside slots and labels, cut and moved with them, part of the digest."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from data.batches.batch import Batch
from data.batches.collate import BinTargets, FilledBin, collate, fill_bin
from data.order.plan import Bin

SETTINGS = SimpleNamespace(bin_tokens=8, documents_per_bin=2)


def targets_of(slots: list[int], labels: list[float], outputs: list[int], bounds: list[int]) -> BinTargets:
    columns = np.array(outputs, np.int64), np.array(bounds, np.int8)
    return np.array(slots, np.int32), np.array(labels, np.float32), *columns


def of_bin(*targets: BinTargets) -> FilledBin:
    """Two documents, of three and of four tokens."""
    samples, lengths = np.array([5, 9]), np.array([3, 4])
    bin_ = Bin(samples, np.zeros(2, np.int64), np.zeros(2, np.int64), lengths)
    return fill_bin(bin_, np.arange(4, 11, dtype=np.uint8), *targets)


def laid_out(*bins: FilledBin) -> Batch:
    return collate(bins, SETTINGS, range(len(bins)))


def values(batch: Batch, objective: int = 0) -> list[tuple[float, ...]]:
    targets = batch.targets[objective]
    columns: list[Tensor] = [targets.slots, targets.labels, *targets.columns]
    return list(zip(*(column.tolist() for column in columns), strict=True))


FIRST = targets_of([0, 0, 3], [0.5, -1.0, 2.0], [0, 7, 7], [0, 1, -1])
SECOND = targets_of([3], [4.0], [2], [0])
NONE = targets_of([], [], [], [])


def test_columns_stand_beside_slots_and_labels() -> None:
    batch = laid_out(of_bin(FIRST, NONE), of_bin(SECOND, NONE), of_bin(NONE, SECOND))
    assert values(batch) == [(0, 0.5, 0, 0), (0, -1.0, 7, 1), (3, 2.0, 7, -1), (11, 4.0, 2, 0)]
    assert values(batch, 1) == [(19, 4.0, 2, 0)]
    assert batch.counts.tolist() == [4, 1]
    dtypes = [tensor.dtype for tensor in (batch.targets[1].labels, *batch.targets[1].columns)]
    assert dtypes == [torch.float32, torch.int64, torch.int8]


def test_columns_are_shared_and_moved_with_their_targets() -> None:
    batch = laid_out(of_bin(FIRST), of_bin(SECOND))
    shares = [batch.share(rank, 4) for rank in range(4)]
    assert [values(share) for share in shares] == [values(batch)[:3], [], values(batch)[3:], []]
    idle = batch.idle().targets[0]
    assert [(tensor.shape, tensor.dtype) for tensor in idle.columns] == [((0,), torch.int64), ((0,), torch.int8)]
    moved = batch.to("meta").targets[0]
    assert [tensor.device.type for tensor in (moved.slots, moved.labels, *moved.columns)] == ["meta"] * 4


def test_a_digest_covers_each_column() -> None:
    digests = {of_bin(FIRST).digest}
    for column in range(4):
        changed = [array.copy() for array in FIRST]
        changed[column][-1] += 1
        digests.add(of_bin((changed[0], changed[1], *changed[2:])).digest)
    assert len(digests) == 5


def test_without_columns_there_are_none() -> None:
    (targets,) = laid_out(of_bin(FIRST[:2])).targets
    assert targets.columns == ()
    assert targets.between(0, 2).columns == ()
