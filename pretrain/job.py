"""Pretraining as a job: an encoder learns by the objective that the recipe names.

In: a recipe, whose corpora are opened or built. Out: as in `trainer.job.Job`. Kept: in checkpoints, what was read of a
stream, and the contact head of the ESM-2 that a run starts from.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data.batches.loader import Loader, Step
from data.batches.masking import mask_policy
from data.corpus.consumed import StreamIdentity
from data.order.plan import CorpusProgress, Cursor
from data.order.settings import forward_bins
from data.store.growing import GrowingStore
from pretrain.corpora import open_on_every_rank
from pretrain.evaluate.validation import require_targets, validation_set
from pretrain.machine import machine_of
from pretrain.model.build import build_meta, initializers
from pretrain.model.compute import set_up_encoder
from pretrain.model.encoder import Encoder
from pretrain.model.memory import MemoryEstimate, bins_that_fit, memory_of, require_memory
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.settings import ModelSettings
from pretrain.model.weights.names import CONTACT_HEAD
from pretrain.objective import held_out_unit, objective_of
from pretrain.recipe import Recipe
from zymogen.settings.extension import files_of
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.job import Job, LossTerm, ModelBundle, ValidationScores
from zymogen.trainer.optimizer.kinds import ParameterGroup, parameter_groups
from zymogen.trainer.optimizer.settings import PEAK_LR, TRAINED_PEAK_LR
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run_console import gigabytes
from zymogen.trainer.step import StepResult
from zymogen.trainer.telemetry.memory import free_bytes

_CONSUMED = "corpus/consumed"
"""Entry of a checkpoint: what was read of a stream (`data.corpus.consumed`)."""


class PretrainingJob(Job[ValidationScores]):
    """Pretraining.

    Args:
        recipe: what is trained.
        engine: how it is spread.
        lines: for the start of the run, about how the recipe was resolved.

    Raises:
        ValueError: a corpus cannot be opened, or nodes hold different ones, or nothing of it can be scored.
    """

    bounds_spikes = True
    shape: EsmShape
    contact_head: Mapping[str, Any] | None = None
    """That of the ESM-2 which the run started from, as checkpoints keep it; it is not trained."""

    def __init__(self, recipe: Recipe, engine: Engine, lines: Sequence[str] = ()) -> None:
        self.recipe, self.engine, self._lines = recipe, engine, lines
        self.objective, mask = objective_of(recipe.objective), mask_policy(recipe.data.mask)
        if recipe.model.preset is not None:  # before hours of building and clustering
            self._require_memory(PRESETS[recipe.model.preset])
        self.corpora = open_on_every_rank(recipe.data, engine)
        self.scored = validation_set(self.corpora, recipe.data, recipe.run.validation_sequences)
        contents = self.objective.scored_contents(self.scored, recipe.data)
        require_targets(contents, self.scored, recipe.data, holds_out=self.corpora.holds_out)
        if self.corpora.families and not mask.is_independent:
            self._lines = [*lines, f"floor: not given, as {recipe.data.mask.name} masks residues that depend on others"]

    @property
    def objectives(self) -> Sequence[LossTerm]:
        """The terms of the objective."""
        return self.objective.loss_terms

    @property
    def publishes_with(self) -> Sequence[str]:  # type: ignore[override]
        """The modules of the objective."""
        return self.objective.publishes_with

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the corpora that are drawn from, and of what is held out of them."""
        return {"corpus": self.corpora.fingerprint, "split": self.corpora.split_fingerprint}

    def description(self) -> dict[str, Any]:
        """Sizes of the corpora, the fingerprints, and what is held out."""
        return self.corpora.description() | {"held_out": held_out_unit(self.corpora)}

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        """The recipe's model, or the described one: what `model.init` names is not read again."""
        if described is None:
            self.shape, first, head = initializers(self.recipe.model, self.recipe.run.seed, self.objective.model)
            self.contact_head = asdict(head) if head else None
        else:
            self.shape, first = EsmShape(**described), {}
        self._require_memory(self.shape)
        self.baseline = self.objective.baseline(self.corpora)
        return ModelBundle(
            build_meta(self.shape, self.objective.model), asdict(self.shape), first, width=self.shape.dim
        )

    def facts(self) -> list[tuple[str, str]]:
        """The architecture, the proteins and how they were split, and the memory."""
        shape, model = self.shape, self.recipe.model
        kind = f"{'ESM C' if shape.is_modern else 'ESM-2'}, {shape.layers} layers, width {shape.dim}"
        parameters = f"{model.preset or model.init}, {self.num_parameters:,} parameters: {kind}"
        expected = self._expected(shape)
        parts = f"{gigabytes(expected.activations)} activations, {gigabytes(expected.state)} model"
        memory = f"about {gigabytes(expected.total)} a process ({parts})"
        return [("model", parameters), *self.corpora.facts(), ("memory", memory)]

    def _expected(self, shape: EsmShape) -> MemoryEstimate:
        data = self.recipe.data
        return _expected(self.recipe, self.engine, shape, min(forward_bins(data), data.bins_per_step))

    def _require_memory(self, shape: EsmShape) -> None:
        require_memory(self._expected(shape).total, machine_of(self.engine))

    def set_up(self, model: nn.Module) -> list[str]:
        """Set the encoder up."""
        recipe = self.recipe
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        encoder = cast(Encoder, model.encoder)
        slots = recipe.data.bin_tokens * forward_bins(recipe.data)
        lines = set_up_encoder(encoder, self.engine, recipe.compute, recipe.parallel.exchange, slots)
        return [*lines, *self._lines, *_peak_rate(recipe)]

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        """All parameters; matrices decay."""
        return parameter_groups(model, self.recipe.optimizer)

    def loader(self, cursor: Cursor, first_step: int) -> Loader:
        """Bins of the corpora, filled as the objective asks."""
        seed, engine, plan = self.recipe.run.seed, self.engine, self.corpora.plan(self.recipe.run.seed)
        contents = self.objective.contents(self.corpora.reader, self.recipe.data, seed)
        contents.files = files_of((self.recipe.data.mask.name, self.recipe.objective.name))
        return Loader(contents, plan, cursor, first_step, engine.data_rank, engine.data_world_size)

    def flops(self, step: Step, result: StepResult) -> float:
        """FLOPs that the step needed, over all ranks."""
        return self.objective.flops(self.shape, step.num_tokens, step.squared_lengths, sum(result.counts))

    def evaluate(self, model: nn.Module) -> ValidationScores:
        """The objective's scores on held-out proteins; collective."""
        return self.objective.evaluate(model, self.corpora, self.scored, self.engine, self.baseline)

    def scored_set(self) -> str:
        """That of the frozen set, which `pretrain.evaluate` has in each of its rows, too."""
        return self._scored_set

    @cached_property
    def _scored_set(self) -> str:
        return self.scored.fingerprint()

    def publish(self, run: RunDirectory) -> None:
        """What the objective publishes."""
        self.objective.publish(run)

    def corpus_progress(self, cursor: Cursor) -> CorpusProgress | None:
        """Proteins and passes; None for a mixture and for cluster sampling."""
        return self.corpora.progress(self.corpora.plan(self.recipe.run.seed), cursor)

    def sample_names(self, samples: NDArray[np.int64]) -> list[str]:
        """The first word of each header."""
        return self.corpora.names(samples)

    @property
    def entry_names(self) -> Set[str]:
        """The contact head, and what was read of a stream."""
        return frozenset({CONTACT_HEAD, _CONSUMED})

    def checkpoint_entries(self, cursor: Cursor) -> dict[str, dict[str, Any]]:
        """What was read of a stream up to the cursor, finished stores have fingerprints; and the contact head."""
        kept = {CONTACT_HEAD: dict(self.contact_head)} if self.contact_head else {}
        if (consumed := self._consumed) is not None:
            kept[_CONSUMED] = self.engine.on_main(lambda: consumed.up_to(cursor))
        return kept

    def require_entries(self, entries: Mapping[str, Mapping[str, Any]], cursor: Cursor) -> None:
        """A stream's fingerprint leaves out its tail, so what was read of that is compared here."""
        self.contact_head = entries.get(CONTACT_HEAD)
        kept = entries.get(_CONSUMED)  # absent where the store was finished
        if (consumed := self._consumed) and kept is not None:
            self.engine.on_each_node(lambda: consumed.require(kept, cursor))

    @cached_property
    def _consumed(self) -> StreamIdentity | None:
        stream = self.corpora.parts[0].store  # a mixture has no streams, so that a stream is the only corpus
        return StreamIdentity(stream, self.recipe.data.window_sequences) if isinstance(stream, GrowingStore) else None


def open_job(recipe: Recipe, engine: Engine) -> PretrainingJob:
    """The job of a run whose directory this process has claimed; collective.

    Where `data.bins_per_forward` is "auto", the run's first start with it chooses the number and writes it to run.json,
    and later ones take that: another number adds gradients in another order.

    Raises:
        ValueError: as of `PretrainingJob`.
    """
    run, kept = RunDirectory(Path(recipe.run.directory)), None
    chooses = recipe.data.bins_per_forward == "auto"
    if chooses:
        kept = engine.on_main(lambda: run.read().bins_per_forward if run.has_trained else None)
    numbered, lines = in_bins(recipe, engine, kept)
    if chooses:
        engine.on_main(lambda: run.describe(bins_per_forward=forward_bins(numbered.data)))
    return PretrainingJob(numbered, engine, lines)


def in_bins(recipe: Recipe, engine: Engine, kept: int | None = None) -> tuple[Recipe, list[str]]:
    """The recipe with `data.bins_per_forward` as a number, and a line that says why it is that; collective.

    Args:
        recipe: what is trained; a number that it gives stays as it is, without a line.
        engine: how it is spread.
        kept: the number that "auto" is; None: it is chosen now, by the free memory.
    """
    if recipe.data.bins_per_forward != "auto":
        return recipe, []
    if kept is not None:
        number, why = kept, "which an earlier start chose"
    else:
        number, why = _chosen(recipe, engine)
    numbered = replace(recipe, data=replace(recipe.data, bins_per_forward=number))
    return numbered, [f"bins a forward pass: {number}, {why}; data.bins_per_forward=N takes N"]


def _chosen(recipe: Recipe, engine: Engine) -> tuple[int, str]:
    """The least number that any rank has memory for, and why it is that."""
    free, most = free_bytes(engine.device), -(-recipe.data.bins_per_step // engine.data_world_size)
    if free is None:
        return 1, "as more gain hardly anything on a CPU"
    shape = _shape_of(recipe.model)
    fit = bins_that_fit(free, most, lambda bins: _expected(recipe, engine, shape, bins).total)
    fits, frees = zip(*engine.gather((fit, free)), strict=True)
    return min(fits), f"of {most} that a process has of a step, by the {gigabytes(min(frees))} of memory that are free"


def _shape_of(model: ModelSettings) -> EsmShape:
    if model.init is None:
        return PRESETS[str(model.preset)]
    from pretrain.model.weights import source  # transformers takes seconds to import

    return source.shape_of(source.config_of(model.init))


def _expected(recipe: Recipe, engine: Engine, shape: EsmShape, bins: int) -> MemoryEstimate:
    """The memory of one process, with so many bins in a forward pass."""
    slots, optimizer = recipe.data.bin_tokens * bins // engine.context.size, recipe.optimizer.name
    return memory_of(shape, slots, machine_of(engine), optimizer, checkpointing=recipe.compute.checkpointing)


def _peak_rate(recipe: Recipe) -> list[str]:
    """A line about the peak rate of weights that are trained already."""
    peak = recipe.schedule.peak
    if recipe.model.init is not None and peak == TRAINED_PEAK_LR:
        said = f"a tenth of that from random weights, because {recipe.model.init} is trained already"
        return [f"learning rate: peak {peak:g}, {said}; schedule.peak_lr sets another"]
    if recipe.model.init is not None and peak >= PEAK_LR:
        said = f"a rate for random weights, and {recipe.model.init} is trained already"
        return [f"learning rate: peak {peak:g}, {said}; schedule.peak_lr=none takes {TRAINED_PEAK_LR:g}"]
    return []
