"""Processes that share batches, for tests of context parallelism; and the batches and models that they share."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from data.batches.batch import Batch
from pretrain.model.attention.choice import Backend
from pretrain.model.context import ContextShard, Exchange
from pretrain.model.encoder import Checkpointing
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from support.inputs.flat_batches import document, mixed_bins, pack, perturb
from support.launching import fork_server

WORLD = 4
SIZES = (2, 4)

# Lengths of documents by bin. Shares of 2 and of 4 ranks end inside a document in all but the last two.
BATCHES: dict[str, Callable[[], Batch]] = {
    "packed": lambda: pack([*mixed_bins(), [document(150, 0.2, 9), document(100, 0.1, 8)]]),  # 960 slots of 3 bins
    "whole": lambda: pack([[document(320, 0.15, 1)]]),
    "pads": lambda: pack([[document(60, 0.3, 1)]]),  # 1 of 2 ranks has nothing but pads, and 3 of 4
    "idle": lambda: pack(mixed_bins()).idle(),
}


@dataclass(frozen=True)
class Case:
    preset: str = "esm2_60k"
    exchange: Exchange = "ulysses"
    backend: Backend = "flash_cpu"
    batch: str = "packed"
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None
    dropout: float = 0.0
    checkpointing: Checkpointing = "none"
    layers: int = 2
    size: int = 2
    changed: str = ""
    """What is done otherwise: a key of the test's `CHANGES`."""

    def model(self) -> MaskedLanguageModel:
        model = MaskedLanguageModel(
            replace(PRESETS[self.preset], dropout=self.dropout, layers=self.layers),
            "auto" if self.backend == "varlen" else self.backend,
        )
        perturb(model)
        model.encoder.checkpointing = self.checkpointing
        return model.to(self.dtype)


# Processes ----------------------------------------------------------------------------------------


class Ranks:
    """Processes that wait for work."""

    def __init__(self, folder: Path) -> None:
        starting = fork_server()
        self.ours, theirs = zip(*(starting.Pipe() for _ in range(WORLD)), strict=True)
        self.processes = [
            starting.Process(target=_work, args=(rank, str(folder / "store"), connection), daemon=True)
            for rank, connection in enumerate(theirs)
        ]
        for process in self.processes:
            process.start()

    def run(self, case: Case, function: Callable[..., Any]) -> list[Any]:
        """What `function` of (case, context) gives on each rank of a group of `case.size`."""
        members = self.ours[: case.size]
        for connection in members:
            connection.send((case, function))
        results = []
        for connection in members:
            assert connection.poll(100), "a rank does not answer"
            results.append(connection.recv())
        for is_error, result in results:
            assert not is_error, result
        return [result for _, result in results]

    def end(self) -> None:
        for connection in self.ours:
            connection.send(None)
        for process in self.processes:
            process.join(20)
            assert process.exitcode == 0


def _work(rank: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=limit)
    groups = {size: dist.new_group(list(range(size)), timeout=limit) for size in SIZES}
    while task := connection.recv():
        case, function = task
        try:
            answer = False, function(case, ContextShard(rank, case.size, case.exchange, groups[case.size]))
        except Exception:
            answer = True, traceback.format_exc()
        connection.send(answer)
    dist.barrier()
    dist.destroy_process_group()


# What a GPU would do ------------------------------------------------------------------------------


def varlen_kernel(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    """What torch's varlen kernel computes."""
    of_queries, of_keys = given["cu_seq_q"].tolist(), given["cu_seq_k"].tolist()
    assert (of_queries[0], of_queries[-1], of_keys[0], of_keys[-1]) == (0, len(query), 0, len(key))
    assert len(of_queries) == len(of_keys)
    out = []
    for i in range(len(of_keys) - 1):
        q, k = slice(*of_queries[i : i + 2]), slice(*of_keys[i : i + 2])
        assert q.stop - q.start <= min(given["max_q"], k.stop - k.start)
        assert 0 <= k.stop - k.start <= given["max_k"]
        if q.stop > q.start:
            parts = query[q], key[k], value[k]
            out.append(F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts), scale=given["scale"]))
    return torch.cat(out, 1).transpose(0, 1)
