"""Export a fine-tuned model for transformers, or its adapter for peft.

    python -m finetune.export runs/mine/bundle -o exported
    python -m finetune.export runs/mine/bundle -o adapter --adapter EsmModel

In: a bundle. Out: a folder that `AutoModelForSequenceClassification` or `AutoModelForTokenClassification` loads without
this project, or that `peft.PeftModel` does; exit status 0; 2 for a mistake in the input, 1 for anything else.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.bundle.places import bundles_at
from pretrain.engine.command import Parser, answered

if TYPE_CHECKING:
    from torch import Tensor

    from finetune.bundle.folder import Bundle
    from finetune.tasks.objective import Objective


def main(arguments: list[str] | None = None) -> int:
    """Export what the command line asks for; the exit status."""
    return answered(lambda: _export(_parser().parse_args(arguments)))


def _export(options: argparse.Namespace) -> None:
    from finetune.adaptation.exchange import write_adapter
    from finetune.adaptation.lora import adapter_of
    from finetune.bundle.folder import open_folder

    (folder, *others) = bundles_at(options.bundle)
    if others:
        raise ValueError(f"{options.bundle} has {len(others) + 1} models; export one of them, such as {folder}")
    bundle, out = open_folder(folder), options.output
    if options.adapter is None:
        export(bundle, out, options.base)
    elif bundle.manifest.adapters is None:
        kind = bundle.manifest.adaptation.kind
        raise ValueError(f"{folder} has no adapter: its adaptation.kind is {kind!r}; leave --adapter out")
    else:
        adapter = adapter_of(bundle.tensors, bundle.manifest.adapters.plan)
        write_adapter(adapter, bundle.manifest.encoder, out, options.adapter, options.base or bundle.manifest.base.init)
    print(f"{out}: exported from {folder}", flush=True)


def export(bundle: "Bundle", folder: Path, base: str | None = None) -> None:
    """Write the folder that transformers loads.

    Args:
        bundle: whose heads have the form "transformers".
        folder: to be made.
        base: where the weights are that it was trained on; None for where they were then.

    Raises:
        ValueError: transformers has no such model, the folder exists, or the base is not the one.
    """
    from data.durable import published
    from finetune.bundle.transformers import save
    from finetune.predictor import whole_parameters

    objective = exportable(bundle)
    if folder.exists():
        raise ValueError(f"{folder} exists; an export is written to a new folder: choose another, or remove this one")
    parameters = _merged(bundle, whole_parameters(bundle, base))
    with published(folder) as building:
        save(building, bundle.manifest, objective, parameters)


def exportable(bundle: "Bundle") -> "Objective":
    """The objective of a bundle that a model of transformers can compute.

    Raises:
        ValueError: there is more than one, or its head or type has no place there; the message says which.
    """
    manifest = bundle.manifest
    objectives = [task.objective for task in manifest.tasks]
    named = ", ".join(f"{o.settings.name} ({o.settings.type}, {o.settings.level})" for o in objectives)
    if manifest.heads.form != "transformers":
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
    kind, outputs = objective.settings.type, len(objective.outputs)
    if kind == "ordinal":
        raise ValueError(f"task {objective.settings.name!r} is ordinal, a problem type that transformers does not have")
    if kind == "multiclass" and outputs > 1:
        raise ValueError(
            f"task {objective.settings.name!r} has {outputs} multiclass columns, and transformers chooses one class of "
            "one column; train one column to export"
        )
    return objective


def _merged(bundle: "Bundle", parameters: Mapping[str, "Tensor"]) -> Mapping[str, "Tensor"]:
    from finetune.adaptation.lora import merged

    adapters = bundle.manifest.adapters
    return merged(parameters, adapters.plan) if adapters else parameters


def _parser() -> Parser:
    parser = Parser(prog="python -m finetune.export", description="Export a bundle for transformers, or for peft.")
    parser.add_argument("bundle", type=Path, help="bundle/ of a run, or the run")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--base", help="folder or Hub name of the weights that the bundle was trained on")
    parser.add_argument("--adapter", metavar="CLASS", help="the adapter alone, for this class, such as EsmForMaskedLM")
    return parser


if __name__ == "__main__":
    sys.exit(main())
