"""Frozen parameters: those that a run does not train. No checkpoint holds them; its manifest identifies them.

In: where they come from, an initial checkpoint or a published model, as weights by name. Out: their values in the
engine's state or beside those of a checkpoint, and one hash of all of them (`digests.digest.identity`). Kept: nothing.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from torch import Tensor

from pretrain.checkpoint.digests.digest import hexadecimal, identity, identity_of, sums
from pretrain.checkpoint.files.reading import read_tensors
from pretrain.checkpoint.load import VerifiedCheckpoint
from pretrain.checkpoint.manifest import FROZEN
from pretrain.checkpoint.restore import require_same_frozen
from pretrain.engine.named_state import NamedState, Weights, fill


def fill_frozen(state: NamedState, source: Weights, gather: Callable[[Any], list[Any]]) -> str | None:
    """Give the frozen parameters their values; collective.

    Args:
        state: as prepared.
        source: where the values come from; only those of frozen parameters are read.
        gather: every rank's value, on every rank.

    Returns:
        Their content hash; None where the run trains all of its parameters.

    Raises:
        ValueError: ranks read different values.
    """
    names, digests = sorted(state.frozen), dict[str, str]()
    if not names:
        return None

    def read(name: str) -> Tensor:
        weight = source[name]()
        digests[name] = hexadecimal(sums(weight))
        return weight

    fill(state, names, {name: partial(read, name) for name in names})
    own = identity({name: state.shape(name) for name in names}, digests)
    found = gather(own)
    if len(set(found)) > 1:
        raise ValueError(
            f"the frozen parameters, such as {names[0]!r}, are not alike on all ranks: their content hashes are "
            f"{sorted(set(found))}; let every rank read them from the same files"
        )
    return own


def read_whole(
    checkpoint: VerifiedCheckpoint, names: Collection[str], frozen: Weights | None = None
) -> dict[str, Tensor]:
    """All parameters of a model, whole, float32 on the host: those of a checkpoint, and the frozen ones.

    Args:
        checkpoint: holds what was trained.
        names: of the parameters.
        frozen: where the others come from.

    Raises:
        ValueError: the checkpoint does not hold all of them and there is no `frozen`, or another one than that it was
            trained on.
        InvalidCheckpointError: bytes are not what was written.
    """
    index = checkpoint.index["model"]
    absent = sorted(set(names) - index.shapes.keys() - index.aliases.keys())
    if absent and frozen is None:
        count = len(index.shapes)
        raise ValueError(
            f"{checkpoint.path} holds {count} of {count + len(absent)} parameters: {absent[0]!r} and others "
            f"were frozen (content hash {checkpoint.manifest.fingerprints.get(FROZEN)}); give the weights that they "
            "come from"
        )
    others = {} if frozen is None else {name: frozen[name]() for name in absent}
    if frozen is not None:
        require_same_frozen(checkpoint, identity_of(others.items()) if others else None)
    return read_tensors(checkpoint, "model") | others
