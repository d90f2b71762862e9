"""What all ranks hold after a load, compared with what was saved: by digests, whatever engine and world wrote it.

In: the digests of a checkpoint, the state that it was loaded into. Out: an error that names the tensors that differ.
Kept: nothing. Each rank adds up what it would store of the state now (`NamedState.pieces`, a tensor in all once), so
that reading, dealing and copying are all between what is compared.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from pretrain.checkpoint.digests.lanes import Digest
from pretrain.checkpoint.staging import stored_as
from pretrain.engine.named_state import NamedState
from pretrain.engine.ranks import Ranks
from pretrain.run.errors import CheckpointError


def require_same_digest(path: Path, digest: str, saved: Mapping[str, str], state: NamedState, ranks: Ranks) -> None:
    """Compare what all ranks hold with what was saved; collective.

    Args:
        path: of the checkpoint.
        digest: of all tensors, as the manifest has it.
        saved: digest of each stored tensor, by part and name, in one order on every rank.
        state: what it was loaded into. Moments that the checkpoint lacks are left out.
        ranks: that hold the state together.

    Raises:
        CheckpointError: on every rank, some tensor is not what was saved.
    """
    own: dict[str, list[Digest]] = defaultdict(list)
    for piece in state.pieces():
        name = "/".join(stored_as(piece))
        if name in saved:
            own[name].append(Digest.of(name, piece.start, piece.live.detach().float().cpu()))
    lanes = np.array([Digest.total(own[name]) for name in saved], np.uint64).reshape(-1, 2)
    summed = ranks.sum_over_ranks(ranks.on_device(torch.from_numpy(lanes.view(np.int64)))).cpu().numpy()
    found = [Digest(*map(int, both)) for both in summed.view(np.uint64)]
    if Digest.total(found).hexadecimal() != digest:
        differing = [name for name, each in zip(saved, found, strict=True) if each.hexadecimal() != saved[name]]
        raise CheckpointError(
            path,
            f"{len(differing)} of {len(saved)} tensors are not what was saved, after they were read from files that "
            f"are: {differing[:5]}",
            "start again; if it happens again, on another machine, report it",
        )
