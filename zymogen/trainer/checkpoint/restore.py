"""Restore: a checkpoint put into a model and its optimizer, each rank's part, verified in the buffer that is copied.

In: a checkpoint whose JSON is right, and a state as an engine prepared it. Out: where the run stands, or an error.
Kept: nothing. What was restored before damage is found is overwritten by the restore of an earlier checkpoint.

Frozen parameters, which a run does not train, are in no checkpoint: the manifest has one content hash of all of them
(`digests.digest.identity`). `fill_frozen` reads them from their source, `read_whole` adds them to those of a
checkpoint. After a load all ranks compare what they hold with the saved digests.
"""

from collections.abc import Callable, Collection, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.digests.digest import hexadecimal, identity, identity_of, sums
from zymogen.trainer.checkpoint.files.blocks import PARTS
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint
from zymogen.trainer.checkpoint.manifest import ENTRIES, FROZEN, TRAINER_FILE, TrainerState, UnsupportedVersionError
from zymogen.trainer.checkpoint.reader import TensorRange, TensorReader, read_tensors
from zymogen.trainer.checkpoint.writer import stored_as
from zymogen.trainer.engine.named_state import NamedState, Weights, fill, set_tensor
from zymogen.trainer.engine.ranks import Ranks


def restore(
    checkpoint: VerifiedCheckpoint,
    state: NamedState,
    ranks: Ranks,
    frozen: str | None = None,
    known: Set[str] = ENTRIES,
) -> TrainerState:
    """Load parameters, moments and steps, each rank its own part; every check of names comes before the first write.

    A parameter without moments in a checkpoint at step 0 gets zeros, which is where it stood. Collective.

    Args:
        checkpoint: what is read.
        state: what it is read into. Its frozen parameters are in no checkpoint, and stay as they are.
        ranks: that hold the state together. All of them raise the same error about bytes.
        frozen: content hash of the frozen parameters; None where there are none.
        known: names of entries that this run can continue from.

    Raises:
        ValueError: names, shapes, ties, moments or frozen parameters of the checkpoint are not those of `state`.
        UnsupportedVersionError: the run has state that this version does not know, and would silently continue without.
        InvalidCheckpointError: bytes are not what was written; the state is neither the old nor the new one then.
        StorageError: the bytes cannot be read.
        CheckpointError: what was loaded is not what was saved.
    """
    unknown = sorted(checkpoint.trainer.entries.keys() - known)
    if unknown:
        what = f"{TRAINER_FILE} has the entries {unknown[:5]}, known are {sorted(known)}"
        raise UnsupportedVersionError(checkpoint.path, checkpoint.manifest.versions, what)
    model, optimizer = (checkpoint.index[part] for part in PARTS)
    here = f"{checkpoint.path}: "
    shapes = {name: state.shape(name) for name in state.names}
    has_frozen = bool(state.frozen) or FROZEN in checkpoint.manifest.fingerprints
    remedy = "use the recipe of that run" + (", and freeze what it froze" if has_frozen else "")
    _require_same_names(here + "parameters" + " that are trained" * has_frozen, set(model.shapes), set(shapes), remedy)
    _require_same_names(here + "optimizer steps", set(optimizer.steps), set(shapes))
    _require_same_shapes(here, model.shapes, shapes)
    require_same_frozen(checkpoint, frozen)
    if model.aliases != dict(state.aliases):
        raise ValueError(
            f"{here}tied weights differ: the checkpoint has {model.aliases}, the model "
            f"{dict(state.aliases)}; tie the model as the run did"
        )
    state.begin_load()
    moments = {f"{key}/{name}": (name, key) for name in shapes for key in state.moments(name)}
    stepped = {moment.partition("/")[2] for moment in optimizer.shapes}
    fresh = {m for m, (name, _) in moments.items() if not optimizer.steps[name] and name not in stepped}
    _require_same_names(here + "optimizer moments", set(optimizer.shapes), set(moments) - fresh)
    expected = {moment: shapes[name] for moment, (name, _) in moments.items()}
    _require_same_shapes(here, optimizer.shapes, expected)
    stored = {"model": {name: (name, "param") for name in shapes}, "optimizer": moments}
    wanted: dict[str, dict[str, TensorRange]] = {part: {} for part in stored}
    beside: list[tuple[Tensor, Tensor]] = []  # elements that do not lie one after the other where they go
    for part, of_part in stored.items():
        for name, (parameter, key) in of_part.items():
            (start, stop), target = state.local_part(parameter, key)
            if name in fresh:
                target.zero_()
                continue
            if target.is_contiguous():
                flat = target.view(-1)[: stop - start]
                target.view(-1)[stop - start :].zero_()
            else:
                flat = torch.empty(stop - start)
                beside.append((flat, target))
            wanted[part][name] = (start, stop), flat
    for name in shapes:
        state.set_step(name, optimizer.steps[name])
    TensorReader(checkpoint, wanted).read_with(ranks)
    for values, target in beside:
        set_tensor(values, target)
    state.end_load()
    require_same_digest(checkpoint, state, ranks)
    return checkpoint.trainer


def require_same_frozen(checkpoint: VerifiedCheckpoint, found: str | None) -> None:
    """Raise ValueError if `found` is not the content hash of the frozen parameters that it was trained on."""
    stored = checkpoint.manifest.fingerprints.get(FROZEN)
    if stored != found:
        raise ValueError(
            f"{checkpoint.path} was trained on other frozen parameters, which it does not hold: their content hash was "
            f"{stored}, and is now {found}; put back the weights that the run began with, or choose another "
            "run.directory to train on these"
        )


def _require_same_names(
    what: str, stored: set[str], wanted: set[str], remedy: str = "use the recipe of that run"
) -> None:
    missing, unknown = sorted(wanted - stored), sorted(stored - wanted)
    if missing or unknown:
        raise ValueError(
            f"{what} differ: {len(missing)} missing in the checkpoint {missing[:5]}, "
            f"{len(unknown)} unknown to this run {unknown[:5]}; {remedy}"
        )


def _require_same_shapes(where: str, stored: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> None:
    differing = [n for n in sorted(stored) if stored[n] != wanted[n]]
    if differing:
        lines = [f"{n}: checkpoint {stored[n]}, model {wanted[n]}" for n in differing[:5]]
        raise ValueError(f"{where}{len(differing)} shapes differ: {'; '.join(lines)}")


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
