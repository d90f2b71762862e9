"""Export: the run as a directory that transformers loads by itself.

In: a run directory with a checkpoint. Out: `export/` with config.json, model.safetensors (or several files and their
index), tokenizer files and README.md, the model card. Kept: that folder.
"""

from pathlib import Path

import torch
from transformers.utils import logging

from pretrain.card.card import write_card
from pretrain.export.checksums import replace_dir
from pretrain.export.contact_head import contact_card_lines
from pretrain.export.verify import reference_logits, require_same
from pretrain.model.build import build_meta
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from pretrain.model.weights.finite import require_finite, require_fits
from pretrain.model.weights.names import CONTACT_HEAD, ContactHead
from pretrain.report import results
from pretrain.trained_model import read_checkpoint, require_own_head
from zymogen.files.durable import describe_os_error, exclusive_lock, workspace, write_error
from zymogen.processes.errors import StorageError, is_disk_full
from zymogen.trainer.checkpoint.digests.digest import identity_of
from zymogen.trainer.checkpoint.load import find
from zymogen.trainer.checkpoint.manifest import checkpoint_name
from zymogen.trainer.checkpoint.restore import read_whole
from zymogen.trainer.engine.named_state import Weights
from zymogen.trainer.run.directory import RunDirectory


def export(
    run: RunDirectory,
    frozen: Weights | None = None,
    *,
    step: int | None = None,
    dtype: transformers_io.StoredType = "float32",
    largest_file: str = transformers_io.LARGEST_FILE,
) -> tuple[Path, int]:
    """Write the export of one of a run's checkpoints beside an older export, then replace that.

    It is loaded through transformers and compared with the checkpoint before it replaces anything. An older export that
    was changed since it was written is kept as `export-1`, or the next number that is free. The run may be training: a
    checkpoint that it removes meanwhile gives way to a newer one.

    Args:
        run: the run that has the checkpoint.
        frozen: source of the parameters that the run does not train, if there are any.
        step: of the checkpoint; None for the newest whole one.
        dtype: what the weights are rounded to.
        largest_file: weights above this size are stored in several files: a number with KB, MB or GB, powers of ten.

    Returns:
        The directory, and the number of optimizer steps that the weights have taken.

    Raises:
        ValueError: there is no such checkpoint, or it was trained on other frozen parameters, or weights of it are NaN
            or infinite or too large for the type, or what transformers reads is not what was written.
    """
    require_own_head(run)
    shape = EsmShape(**run.model())
    model = build_meta(shape).eval()
    names = [name for name, _ in model.named_parameters()]
    chosen = None if step is None else _chosen(run, step)
    checkpoint = read_checkpoint(run, lambda found: read_whole(found, names, frozen), chosen)
    if checkpoint is None:
        raise ValueError(f"{run.root} has no checkpoint yet; train until the first one is written")
    weights = checkpoint.tensors
    rounded = getattr(torch, dtype)
    require_finite(weights, checkpoint.path, "the training diverged there: export an earlier checkpoint with --step")
    require_fits(weights, rounded, checkpoint.path)
    hashes = {identity_of(weights.items())} if (measured := results.is_any(run.root)) else set()
    # Rounded as the files are, so that what transformers reads can be compared.
    model.load_state_dict({name: weights.pop(name).to(rounded).float() for name in list(weights)}, assign=True)
    if measured and dtype != "float32":
        hashes.add(identity_of(model.named_parameters()))
    contact_head = checkpoint.trainer.entry(CONTACT_HEAD, ContactHead)
    if contact_head and len(contact_head.weight) != (maps := shape.layers * shape.heads):
        raise ValueError(f"{checkpoint.path}: the contact head has {len(contact_head.weight)} numbers, allowed {maps}")
    step, tokens_seen = checkpoint.trainer.step, checkpoint.trainer.tokens_seen
    logging.disable_progress_bar()  # or transformers draws one for a single file
    remedy = "get the right to write there"
    with workspace(run.export, remedy) as work, write_error(run.export, remedy):
        building = work / "new"
        building.mkdir()
        transformers_io.save(model, building, contact_head=contact_head, dtype=dtype, largest_file=largest_file)
        expected = reference_logits(model)
        del model  # so that one of both is in memory
        require_same(expected, building)
        write_card(
            run.root,
            building,
            step=step,
            tokens=tokens_seen,
            is_modern=shape.is_modern,
            dtype=dtype,
            contacts=contact_card_lines(shape, contact_head),
            weights=hashes,
        )
        with exclusive_lock(run.root):  # as the run's end may export, too
            replace_dir(building, run.export, work / "old")
    return run.export, step


def _chosen(run: RunDirectory, step: int) -> Path:
    """The checkpoint of a step."""
    path = run.checkpoints / checkpoint_name(step)
    if path not in (present := find(run.checkpoints)):
        steps = ", ".join(path.name.removeprefix("step-").lstrip("0") or "0" for path in reversed(present)) or "none"
        raise ValueError(f"{run.root} has no checkpoint of step {step}; it has those of the steps {steps}")
    return path


def last_export(run: RunDirectory, frozen: Weights | None = None) -> None:
    """The export of a run that has just come to its end.

    Raises:
        ValueError: as for `export`.
        StorageError: the disk has no room for it.
    """
    try:
        export(run, frozen)
    except ValueError as error:
        cause = error.__cause__
        if not (isinstance(cause, OSError) and is_disk_full(cause)):
            raise
        raise StorageError(
            run.export,
            f"{describe_os_error(cause)}; the run is trained and its newest checkpoint is whole, but it is not "
            "exported",
            f"free space there, and export it: python -m pretrain.export {run.root}",
        ) from error
