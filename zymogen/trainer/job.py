"""The job: what is trained, which is all that the loop itself does not know.

In: a recipe and an engine, from which a job is opened. Out: a model, its batches, its scores, what is published of it.
Kept: what the job adds to a checkpoint. `pretrain.job` has one; docs/jobs.md shows how to write another.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from data.batches.loader import Loader, Step
from data.order.plan import CorpusProgress, Cursor
from data.order.settings import PackingSettings
from zymogen.processes.errors import CheckpointError
from zymogen.processes.launcher import command_line
from zymogen.processes.signals import Interrupted, immediate
from zymogen.trainer.engine.settings import LaunchSettings
from zymogen.trainer.optimizer.kinds import ParameterGroup
from zymogen.trainer.optimizer.settings import ScheduleSettings
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.step import StepResult


class LossTerm(NamedTuple):
    """One thing that the model learns to predict."""

    name: str
    weight: float
    """Factor of its mean loss in the loss that is minimised."""
    has_perplexity: bool = False
    """Whether the loss is a mean cross-entropy in nats, so that its exponential is a perplexity."""


class ValidationScores(Protocol):
    """What a validation found, the same on every rank."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """All scores for metrics.jsonl: name of what was scored -> name of a number -> number."""

    def line(self) -> str:
        """A summary for the console, without the step."""

    @property
    def rank_metric(self) -> float:
        """The number by which two checkpoints of one run are compared; the lower one is better."""


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A model before an engine prepares it."""

    model: nn.Module
    """Parameters on the meta device: names and shapes. What is not trained has `requires_grad` False already."""
    description: Mapping[str, Any]
    """For run.json: what `Job.build` needs to build the same model when the run is continued."""
    initializers: Mapping[str, Callable[[], Tensor]]
    """Parameter name -> what draws or reads its first value, whole, float32 on the host.

    For a run that begins, every parameter. For one that is continued, those that are not trained: a checkpoint does not
    hold them.
    """
    width: int
    """Width of the model's matrix products, for which this machine's peak is measured."""
    frozen: str | None = None
    """Content hash of frozen weights that the model does without, because what they compute was computed before."""


S = TypeVar("S", bound=ValidationScores, covariant=True)


class Job(Protocol[S]):
    """What is trained. Every rank has one, and calls its methods in the same order.

    A job that inherits from this class need not write the methods that have a body here.
    """

    @property
    def entry_names(self) -> Set[str]:
        """Every name that `checkpoint_entries` may use; no run continues from a checkpoint that has another one."""
        return frozenset()

    bounds_spikes: ClassVar[bool] = False
    """Whether `run.spike_nats` is a bound of its loss: that the loss is in nats, or that the recipe knows its unit."""

    publishes_with: ClassVar[Sequence[str]] = ()
    """Modules that `publish` imports and nothing imports before."""

    keeps_best: ClassVar[bool] = False
    """Whether the run keeps its best checkpoint, too: that with the lowest `ValidationScores.rank_metric`.

    Then a step that is validated is validated first and then saved, so that its checkpoint says how good it is;
    `checkpoint.best.best_valid` finds the best one.
    """

    @property
    def patience(self) -> int | None:
        """With `keeps_best`, validations in a row without a better score after which training ends; None: never."""
        return None

    @property
    def objectives(self) -> Sequence[LossTerm]:
        """What the model learns, in the order of `Batch.targets` and of the losses that the model returns."""

    def fingerprints(self) -> dict[str, str]:
        """`corpus` and `split`: hashes of what is learned from and of what is held out; a run is continued with both.

        Everything else that decides what is learned is a setting of class identity in the recipe.
        """

    def description(self) -> dict[str, Any]:
        """What run.json says of the data, with the fingerprints; called on rank 0 alone."""
        found = self.fingerprints()
        return {"fingerprint": found["corpus"], "split": found["split"]}

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        """The model of a run that begins, or the one that `ModelBundle.description` described when the run began.

        Its `forward` gets a `Batch` and returns ``(objectives,)`` float32: for each objective the *sum* of its losses
        over the targets. Without a target that sum is 0, and every parameter still gets a gradient from it.
        """

    def set_up(self, model: nn.Module) -> list[str]:
        """Fit the unprepared model to this machine and engine, and return lines for the start of a run."""

    def facts(self) -> Sequence[tuple[str, str]]:
        """What a run prints of its model and data before its first step: (name, text); rank 0 prints it."""
        return ()

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        """What of the unprepared model is trained, and how fast."""

    def loader(self, cursor: Cursor, first_step: int) -> Loader:
        """The steps from a cursor on, for this rank; `first_step` is the number of the first."""

    def flops(self, step: Step, result: StepResult) -> float:
        """FLOPs that a step needed, over all ranks; 0 where its tokens cost none, and then no speed is told."""

    def metrics(self, result: StepResult) -> dict[str, float]:
        """Numbers of a step for metrics.jsonl, besides the loop's own: targets, and each objective's mean loss.

        An objective without a target in the step has none there.
        """
        both = list(zip(self.objectives, result.losses, strict=True))
        each = {f"loss/{of.name}": loss for of, loss in both if loss is not None and len(both) > 1}
        return {"targets": float(sum(result.counts)), **each}

    def evaluate(self, model: nn.Module) -> S:
        """Score the prepared model on what is held out; collective. Its mode stays as it was.

        A signal ends it where it calls `engine.raise_if_interrupted`.
        """

    def scored_set(self) -> str:
        """Hash of what `evaluate` scores, for metrics.jsonl; empty where there is none; called on rank 0 alone."""
        return ""

    @property
    def scored_part(self) -> str:
        """Name under which metrics.jsonl has what `evaluate` finds: "training" where training records are scored."""
        return "validation"

    def publish(self, run: RunDirectory) -> None:
        """Write what others use of the finished run, from its newest or its best checkpoint; called on rank 0 alone."""

    def corpus_progress(self, cursor: Cursor) -> CorpusProgress | None:
        """How much of the data a run has trained on up to `cursor`, None if unknown; called on rank 0 alone."""
        return None

    def sample_names(self, samples: NDArray[np.int64]) -> Sequence[str]:
        """What sequences are called, by the sample ids of a plan, where a run must name them; on rank 0 alone."""
        return [str(sample) for sample in samples.tolist()]

    def checkpoint_entries(self, cursor: Cursor) -> dict[str, dict[str, Any]]:
        """What a checkpoint at `cursor` keeps for the job, by the name of the entry; collective."""
        return {}

    def require_entries(self, entries: Mapping[str, Mapping[str, Any]], cursor: Cursor) -> None:
        """Check that the job can continue from a checkpoint that holds `entries`; collective.

        Raises:
            ValueError: what they say of the data is no longer true.
        """


def require_publishable(job: "Job[Any]") -> None:
    """Import what publishing needs, so that a run that could not end is refused before it trains; on rank 0 alone.

    Raises:
        ValueError: a module cannot be imported.
    """
    for name in job.publishes_with:
        try:
            importlib.import_module(name)
        except Exception as error:  # libraries fail in many ways, as transformers does without docstrings
            raise ValueError(
                f"the export cannot be made at the end of the run: {name} fails with {error!r}; install what it "
                "names again, and leave PYTHONOPTIMIZE=2 out"
            ) from error


def publish(job: "Job[Any]", run: RunDirectory) -> None:
    """Have the job publish, and a signal end that at once; on rank 0 alone.

    Raises:
        ValueError: it failed; the run is trained nevertheless.
        CheckpointError: the same, by the storage.
    """
    try:
        with immediate():
            job.publish(run)
    except (Interrupted, CheckpointError):
        raise
    except Exception as error:
        raise ValueError(
            f"{run.root} is trained and its newest checkpoint is whole, but it was not exported: {error!r}; "
            f"mend that, and the same command exports it without training: {command_line()}"
        ) from error


class TrainingRecipe(LaunchSettings, Protocol):
    """What the loop reads of a recipe, whatever else stands in it."""

    @property
    def data(self) -> PackingSettings:
        """Sizes of crops, bins and steps."""

    @property
    def schedule(self) -> ScheduleSettings:
        """How long it trains, and its learning rates."""
