"""Frozen parameters: those that a run does not train. No checkpoint holds them; its manifest identifies them.

In: where they come from, an initial checkpoint or a published model, as weights by name. Out: their values in the
engine's state or beside those of a checkpoint, and one hash of all of them. Kept: nothing.

The content hash is SHA-256 over each parameter in the order of the names: its name and shape as JSON in one line, then
its elements as little-endian float32.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pretrain.checkpoint.load import Verified, require_same_frozen
from pretrain.checkpoint.manifest import FROZEN
from pretrain.engine.named_state import NamedState, Weights, fill


class ContentHash:
    """One hash of named tensors, which must be added in the order of their names."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Add float32 on the host; the same tensor."""
        assert tensor.dtype == torch.float32, f"{name!r} is {tensor.dtype}"
        self._hash.update(json.dumps([name, list(tensor.shape)]).encode("ascii") + b"\n")
        self._hash.update(tensor.detach().contiguous().numpy().astype("<f4", copy=False).data.cast("B"))
        return tensor

    def hexdigest(self) -> str:
        """The hash of what was added so far, lower-case hex."""
        return self._hash.hexdigest()


def content_hash(weights: Mapping[str, Tensor]) -> str:
    """The hash of whole weights, float32 on the host."""
    content = ContentHash()
    for name in sorted(weights):
        content.add(name, weights[name])
    return content.hexdigest()


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
    names = sorted(state.frozen)
    if not names:
        return None
    content = ContentHash()
    fill(state, names, {name: partial(_hashed, content, name, source) for name in names})
    found = gather(content.hexdigest())
    if len(set(found)) > 1:
        raise ValueError(
            f"the frozen parameters, such as {names[0]!r}, are not alike on all ranks: their content hashes are "
            f"{sorted(set(found))}; let every rank read them from the same files"
        )
    return content.hexdigest()


def _hashed(content: ContentHash, name: str, source: Weights) -> Tensor:
    return content.add(name, source[name]())


def read_whole(checkpoint: Verified, names: Iterable[str], frozen: Weights | None = None) -> dict[str, Tensor]:
    """All parameters of a model, whole, float32 on the host: those of a checkpoint, and the frozen ones.

    Args:
        checkpoint: holds what was trained.
        names: of the parameters.
        frozen: where the others come from.

    Raises:
        ValueError: the checkpoint does not hold all of them and there is no `frozen`, or another one than that it was
            trained on.
    """
    reader = checkpoint.tensors("model")
    whole = {name: reader.read(name) for name in reader.shapes}
    absent = sorted(set(names) - whole.keys() - reader.aliases.keys())
    if absent and frozen is None:
        raise ValueError(
            f"{checkpoint.path} holds {len(whole)} of {len(whole) + len(absent)} parameters: {absent[0]!r} and others "
            f"were frozen (content hash {checkpoint.manifest.fingerprints.get(FROZEN)}); give the weights that they "
            "come from"
        )
    if frozen is not None:
        content = ContentHash()
        whole |= {name: _hashed(content, name, frozen) for name in absent}
        require_same_frozen(checkpoint, content.hexdigest() if absent else None)
    return whole
