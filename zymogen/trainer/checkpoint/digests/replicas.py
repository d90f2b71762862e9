"""Replicas: ranks that should hold the same weights and moments are compared, every so many steps and at every save.

In: what this rank holds, where other ranks hold the same (DDP; HSDP, where as many ranks as there are copies hold the
same rows). Out: nothing, or an error that names the rank that differs from the most. Kept: the step that was compared
last. Where there is one copy, on one process, under FSDP2 and ZeRO, nothing is done.

Copies get the same gradients and take the same steps, so only a fault of memory or of a device makes them differ. It
would stay unnoticed: each step's gradient would be that of a mixture of two models, and a checkpoint holds tensors of
both. A copy is compared by the digest of each tensor (`digests.digest`), which is computed where the tensor is.
"""

import hashlib
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.digests.digest import sums
from zymogen.trainer.engine.named_state import NamedState
from zymogen.trainer.engine.ranks import Ranks


class ReplicaCheck:
    """The copies of a state, of which each rank that trains has one or a part. Every rank makes one at the same time.

    Args:
        named: the state.
        ranks: that train together.
        every: compare after so many steps; 0: never.
        run: directory of the run, for errors.
    """

    def __init__(self, named: NamedState, ranks: Ranks, every: int, run: Path) -> None:
        self._named, self._ranks, self._every, self._run = named, ranks, every, run
        self._compared = -1

    def check_if_due(self, step: int, newest: Callable[[], str]) -> None:
        """Compare if so many steps have been taken; collective.

        Args:
            step: that was taken.
            newest: says what the newest checkpoint is, from which a next start continues; collective.

        Raises:
            CheckpointError: as of `require_same`.
        """
        if self._every and step % self._every == 0:
            self.require_same(step, newest)

    def require_same(self, step: int, newest: Callable[[], str]) -> None:
        """Compare, unless this step was compared; collective.

        Args:
            step: that was taken.
            newest: as of `check_if_due`.

        Raises:
            CheckpointError: on rank 0, copies differ; `PeerError` on the other ranks.
        """
        if not self._every or step == self._compared:
            return
        self._compared = step
        copy = self._named.replica()
        if copy is None:
            return
        part, tensors = copy
        digests = torch.stack([sums(tensor) for tensor in tensors.values()]).tolist()
        found = self._ranks.gather((part, hashlib.sha256(repr(digests).encode()).hexdigest()))
        differing = [of for of in _by_part(found).values() if len({found[rank][1] for rank in of}) > 1]
        if not differing:
            return
        hosts, all_digests = self._ranks.gather(socket.gethostname()), self._ranks.gather(digests)
        ranks = differing[0]
        words = _in_words(ranks, [found[rank][1] for rank in ranks], hosts)
        where = [name for at, name in enumerate(tensors) if len({tuple(all_digests[rank][at]) for rank in ranks}) > 1]
        checkpoint = newest()

        def end() -> None:
            raise CheckpointError(
                self._run,
                f"after step {step}, ranks that must hold the same weights differ in {len(where)} of {len(tensors)} "
                f"tensors, first in {where[0]!r}: {words}; memory or a device is at fault, or machines of different "
                f"kinds train together; nothing of this is saved, {checkpoint}",
                "start again, and without that machine if it happens again; run.compare_copies_every=0 lets copies "
                "differ",
            )

        self._ranks.on_main(end)


def _by_part(found: Sequence[tuple[int, str]]) -> Mapping[int, list[int]]:
    """The ranks that hold each part."""
    ranks: dict[int, list[int]] = {}
    for rank, (part, _) in enumerate(found):
        ranks.setdefault(part, []).append(rank)
    return ranks


def _in_words(ranks: Sequence[int], digests: Sequence[str], hosts: Sequence[str]) -> str:
    """Which of the ranks differ from the most, if most are alike."""
    (common, most), *others = Counter(digests).most_common()
    if most == others[0][1]:
        named = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in ranks)
        return f"{named} are not alike, and which of them is right, {len(ranks)} cannot say"
    wrong = [rank for rank, of in zip(ranks, digests, strict=True) if of != common]
    named = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in wrong)
    return f"{named} {'differs' if len(wrong) == 1 else 'differ'} from the {most} others"
