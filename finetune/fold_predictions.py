"""What the best checkpoints of a run predict of records that did not train.

In: the members that were trained, those of one fold together. Out: `FoldPredictions`: their predictions, calibrated.
Kept: nothing. Rank 0 does it alone, in float32, with the whole model of each member in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from finetune.assays import Assays
from finetune.ensemble import EnsembleMember
from finetune.job import FineTuneJob
from finetune.metrics.predictions import LabelPredictions
from finetune.metrics.scores import NO_VALIDATION
from finetune.results.calibration import Calibration, fit_calibration
from finetune.results.merge import MergedPredictions, average_seeds, with_calibration
from finetune.results.results import EnsembleMemberFacts
from finetune.scoring import predict
from finetune.splits.parts import TEST, VALIDATION
from finetune.tasks.task import Task
from zymogen.trainer.checkpoint.best import best_valid
from zymogen.trainer.checkpoint.restore import read_whole
from zymogen.trainer.run.directory import RunDirectory


class TrainedMember(NamedTuple):
    """A member whose training has ended."""

    member: EnsembleMember
    job: FineTuneJob
    run: RunDirectory


KnownPredictions = dict[str, tuple[int, list[LabelPredictions], list[LabelPredictions]]]
"""Name of a member -> step of its best checkpoint, what that predicts of validation and of the tested part."""


@dataclass(frozen=True, slots=True)
class FoldPredictions:
    """What the members of one fold, one for each seed, predict."""

    assays: Assays
    objectives: tuple[Task, ...]
    part: int
    """`TEST`, or `VALIDATION` where nothing is tested."""
    members: tuple[EnsembleMemberFacts, ...]
    validation: tuple[MergedPredictions, ...]
    tested: tuple[MergedPredictions, ...]
    maps: tuple[tuple[Calibration, ...], ...]
    of_seeds: tuple[tuple[LabelPredictions, ...], ...]
    """For each seed, predictions of the tested part."""

    @property
    def number(self) -> int | None:
        """Which fold it is; None where there are none."""
        return self.members[0].fold


def predict_fold(trained: Sequence[TrainedMember], device: torch.device, known: KnownPredictions) -> FoldPredictions:
    """What the members of one fold predict of its validation and its tested part.

    Args:
        trained: the members.
        device: where they compute.
        known: gets what each member predicts, which is not computed twice.

    Raises:
        FloatingPointError: no validation of a member had a finite score.
        CheckpointError: a member's best checkpoint is not whole.
    """
    assays, objectives = trained[0].member.assays, trained[0].job.tasks
    # A fold in which nothing has a label tests nothing: the next one, which validates here, is tested by another model.
    part = TEST if len(assays.records(TEST)) or trained[0].member.fold is not None else VALIDATION
    for one in trained:
        if one.member.name not in known:
            known[one.member.name] = _predicted(one, part, device)
    each = [known[one.member.name] for one in trained]
    validation, tested, maps = [], [], []
    for number, objective in enumerate(objectives):
        mean, spread = average_seeds(objective, [validated[number] for _, validated, _ in each])
        of_tested, spread_of_tested = average_seeds(objective, [of_part[number] for _, _, of_part in each])
        has_validation, none = assays.chosen_on == "validation", Calibration(why_not=NO_VALIDATION)
        of_output = (
            fit_calibration(objective, mean, assays.calibrates) if has_validation else (none,) * len(objective.outputs)
        )
        maps.append(of_output)
        validation.append(with_calibration(objective, mean, spread, of_output))
        tested.append(with_calibration(objective, of_tested, spread_of_tested, of_output))
    facts = (
        EnsembleMemberFacts(one.member.name, one.member.recipe.run.seed, one.member.fold, step, assays.chosen_on)
        for one, (step, _, _) in zip(trained, each, strict=True)
    )
    return FoldPredictions(
        assays,
        objectives,
        part,
        tuple(facts),
        tuple(validation),
        tuple(tested),
        tuple(maps),
        tuple(tuple(of_part) for _, _, of_part in each),
    )


def _predicted(
    trained: TrainedMember, part: int, device: torch.device
) -> tuple[int, list[LabelPredictions], list[LabelPredictions]]:
    """The step of the best checkpoint of a member, and what that predicts of validation and of the tested part."""
    step, model = best_model(trained, device)
    assays = trained.member.assays
    validation, tested = (
        predict(model, assays, trained.job.tasks, assays.records(of), device) for of in (VALIDATION, part)
    )
    return step, validation, tested


def best_model(trained: TrainedMember, device: torch.device) -> tuple[int, nn.Module]:
    """The step of a member's best checkpoint, and its model, whole, in float32, in evaluation mode."""
    built = trained.job.build(trained.run.model())
    parameters = dict(built.model.named_parameters())
    has_frozen = not all(parameter.requires_grad for parameter in parameters.values())
    # Of a frozen encoder whose features are cached the model has no weights, so there is nothing else to read.
    frozen = built.initializers if has_frozen else None
    checkpoint = best_valid(trained.run.checkpoints, lambda found: read_whole(found, parameters, frozen))
    built.model.load_state_dict({name: checkpoint.tensors[name] for name in parameters}, assign=True)
    return checkpoint.trainer.step, built.model.to(device).train(False)
