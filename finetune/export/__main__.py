"""Export a fine-tuned model for transformers, or its adapter for peft.

    python -m finetune.export runs/mine/bundle -o exported
    python -m finetune.export runs/mine/bundle -o adapter --adapter EsmModel

In: a bundle. Out: a folder that `AutoModelForSequenceClassification` or `AutoModelForTokenClassification` loads without
this project, or that `peft.PeftModel` does; exit status 0; 78 for a mistake in the input, others as in docs/runs.md.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.bundle.locate import bundles_at
from zymogen.command_line.command import make_main
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import ProgressBar

if TYPE_CHECKING:
    from finetune.bundle.folder import Bundle
    from finetune.tasks.task import Task

_DIVERGED = "the training diverged: train again with a lower schedule.peak_lr"


def _export(options: argparse.Namespace) -> None:
    from finetune.adaptation.peft_files import write_adapter
    from finetune.bundle.folder import open_folder
    from pretrain.model.weights.finite import require_finite

    (folder, *others) = bundles_at(options.bundle)
    if others:
        raise ValueError(f"{options.bundle} has {len(others) + 1} models; export one of them, such as {folder}")
    bundle, out = open_folder(folder), options.output
    if os.path.lexists(out):
        raise ValueError(f"{out} exists; an export is written to a new folder: choose another, or remove this one")
    if options.adapter is None:
        with ProgressBar(f"exporting {folder}, and comparing with it what transformers loads", after_s=2.0):
            export(bundle, out, options.base)
    elif bundle.manifest.adapters is None:
        kind = bundle.manifest.adaptation.kind
        raise ValueError(f"{folder} has no adapter: its adaptation.kind is {kind!r}; leave --adapter out")
    else:
        require_finite(bundle.tensors, folder, _DIVERGED)
        base, plan = options.base or bundle.manifest.base.init, bundle.manifest.adapters
        write_adapter(bundle.tensors, plan, bundle.manifest.encoder, out, options.adapter, base)
    print(f"{out}: exported from {folder}", flush=True)


def export(bundle: "Bundle", folder: Path, base: str | None = None) -> None:
    """Write the folder that transformers loads, and compare it with the bundle before it has its name.

    Args:
        bundle: whose heads have the form "transformers".
        folder: to be made; nothing is there.
        base: where the weights are that it was trained on; None for where they were then.

    Raises:
        ValueError: transformers has no such model, the base is not the one, weights are NaN or
            infinite, or what transformers reads is not what was trained.
    """
    from finetune.bundle.base import merged_parameters
    from finetune.export.transformers import save
    from pretrain.model.weights.finite import require_finite
    from zymogen.files.durable import new_dir

    objective = exportable(bundle)
    parameters = merged_parameters(bundle, base)
    require_finite(parameters, bundle.folder, _DIVERGED)
    with new_dir(folder) as building:
        save(building, bundle.manifest, objective, parameters)
        require_same(bundle, building, base)


def require_same(bundle: "Bundle", folder: Path, base: str | None = None) -> None:
    """Load `folder` as its users do, and compare its numbers with those of the bundle's own model.

    Args:
        bundle: with one objective.
        folder: a finished export of it.
        base: as for `export`.

    Raises:
        ValueError: it cannot be read, tensors are missing there or unknown to transformers, or the numbers differ.
    """
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    from data.alphabet import CLS, EOS, decode
    from data.order.plan import SPECIAL_TOKENS
    from finetune.predict.predictor import open_predictor
    from finetune.tables.proteins import in_memory
    from pretrain.export.verify import LENGTHS, random_batch, reload, require_close

    predictor = open_predictor(bundle, base)
    (objective,) = predictor.model.objectives
    of_residues = objective.settings.level == "residue"
    theirs = reload(folder, AutoModelForTokenClassification if of_residues else AutoModelForSequenceClassification)
    longest = bundle.manifest.reading.crop_tokens - SPECIAL_TOKENS
    proteins = [random_batch(min(length, longest), number) for number, length in enumerate(LENGTHS)]
    letters = in_memory("made up", [decode(ids.numpy()) for ids in proteins])
    found = predictor(letters, np.arange(len(proteins)), raw=True)
    scales = np.stack([objective.mean, objective.std]) if objective.settings.is_number else np.array([[0.0], [1.0]])
    mean, std = torch.from_numpy(scales)
    # The last map holds mean and std in float32, and z-scores of it are as exact as a number in the task's scale is.
    rounding = 4 * torch.finfo(torch.float32).eps * float((mean / std).abs().max())
    for record, ids in enumerate(proteins):
        tokens = torch.cat([torch.tensor([CLS]), ids, torch.tensor([EOS])])
        with torch.no_grad():
            logits = theirs(input_ids=tokens[None]).logits[0].double()
        ours = torch.from_numpy(found[record][0])
        scaled = ((logits[1:-1] if of_residues else logits) - mean) / std  # as the head gives it
        require_close(ours, scaled.reshape(ours.shape), len(ids), rounding)


def exportable(bundle: "Bundle") -> "Task":
    """The objective of a bundle that a model of transformers can compute.

    Raises:
        ValueError: there is more than one, or its head or type has no place there; the message says which.
    """
    manifest, objectives = bundle.manifest, bundle.manifest.tasks
    named = ", ".join(f"{o.settings.name} ({o.settings.type}, {o.settings.level})" for o in objectives)
    if not manifest.heads.kind.exports_to_transformers:
        raise ValueError(
            f"{bundle.folder} has heads of the form {manifest.heads.form!r}, which transformers does not have; train "
            "with heads.form = 'transformers' to export"
        )
    if len(objectives) > 1:
        raise ValueError(
            f"{bundle.folder} predicts {named}, each with a head of its own, and a model of transformers has one head "
            "of one problem type; train one [[tasks]], which may have several columns, to export"
        )
    (objective,) = objectives
    outputs, problem = len(objective.outputs), objective.settings.kind.transformers_problem
    if not problem:
        raise ValueError(
            f"task {objective.settings.name!r} is of type {objective.settings.type}, a problem type that transformers "
            "does not have"
        )
    if outputs > 1 and objective.settings.kind.predicts_each_class:
        raise ValueError(
            f"task {objective.settings.name!r} has {outputs} {objective.settings.type} columns, and transformers "
            "chooses one class of one column; train one column to export"
        )
    return objective


def _options(parser: CommandParser) -> None:
    parser.add_argument("bundle", type=Path, help="bundle/ of a run, or the run")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--base", help="folder or Hub name of the weights that the bundle was trained on")
    parser.add_argument("--adapter", metavar="CLASS", help="the adapter alone, for this class, such as EsmForMaskedLM")


main = make_main("finetune.export", "Export a bundle for transformers, or for peft.", _options, _export, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
