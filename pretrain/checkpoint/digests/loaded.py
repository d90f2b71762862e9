"""What all ranks hold after a load, compared with what was saved: by digests, whatever engine and world wrote it.

In: a checkpoint, the state that it was loaded into. Out: an error that names the tensors that differ. Kept: nothing.
Each rank adds up what it would store of the state now (`NamedState.pieces`, a tensor in all once), so that reading,
dealing and copying are all between what is compared.
"""

import torch

from pretrain.checkpoint.digests.digest import hexadecimal, identity, sums
from pretrain.checkpoint.load import VerifiedCheckpoint
from pretrain.checkpoint.staging import stored_as
from pretrain.engine.named_state import NamedState
from pretrain.engine.ranks import Ranks
from zymogen.processes.errors import CheckpointError


def require_same_digest(checkpoint: VerifiedCheckpoint, state: NamedState, ranks: Ranks) -> None:
    """Compare what all ranks hold with what was saved; collective.

    Args:
        checkpoint: that was loaded.
        state: what it was loaded into. Moments that the checkpoint lacks are left out.
        ranks: that hold the state together.

    Raises:
        CheckpointError: on every rank, some tensor is not what was saved.
    """
    saved, shapes = checkpoint.digests, checkpoint.shapes
    places = {name: place for place, name in enumerate(saved)}
    totals = torch.zeros(len(saved), 2, dtype=torch.int64, device=ranks.device)
    for piece in state.pieces():
        if (name := "/".join(stored_as(piece))) in places:
            totals[places[name]] += sums(piece.live, piece.start).to(ranks.device)
    found = dict(zip(saved, map(hexadecimal, ranks.sum_over_ranks(totals).cpu()), strict=True))
    if identity(shapes, found) != checkpoint.manifest.digest:
        differing = [name for name in saved if found[name] != saved[name]]
        raise CheckpointError(
            checkpoint.path,
            f"{len(differing)} of {len(saved)} tensors are not what was saved, after they were read from files that "
            f"are: {differing[:5]}",
            "start again; if it happens again, on another machine, report it",
        )
