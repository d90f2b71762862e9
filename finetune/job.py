"""Fine-tuning as a job: heads for every task on an encoder that learns nothing, adapters, or all.

In: a recipe and the assays of one fold. Out: as in `trainer.job.Job`. Kept: nothing besides what every job keeps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data.batches.loader import Loader, Step
from data.order.plan import CorpusProgress, Cursor
from finetune.adaptation.adapt import adapt, initializers
from finetune.adaptation.features import CachedFeatures, EncoderInputs, cached_features, vectors_of
from finetune.adaptation.groups import parameter_groups
from finetune.adaptation.lora import plan_of
from finetune.adaptation.vectors import Pooling
from finetune.assays import Assays
from finetune.bundle.base import find_base
from finetune.bundle.folder import write_bundle
from finetune.bundle.manifest import BundleManifest, ModelRecord, ReadingSettings
from finetune.heads.input_scale import InputScale
from finetune.metrics.scores import NO_VALIDATION
from finetune.metrics.validation import FineTuneScores
from finetune.model import FineTuneModel
from finetune.recipe import Recipe
from finetune.scoring import evaluate
from finetune.splits.parts import TRAIN, VALIDATION
from finetune.tables.wild_types import read_wild_types
from pretrain.model.compute import set_up_encoder
from pretrain.model.memory import BACKWARD_AND_FORWARD, encoder_flops
from pretrain.model.presets import EsmShape
from pretrain.trained_model import ENCODER, TrainedModel, open_trained_model, random_encoder
from zymogen.console.progress import ProgressBar
from zymogen.trainer.checkpoint.best import best_valid
from zymogen.trainer.checkpoint.reader import read_tensors
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.job import Job, LossTerm, ModelBundle
from zymogen.trainer.optimizer.kinds import ParameterGroup
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.versions import versions
from zymogen.trainer.step import StepResult

_MEASURED = 2000
"""Most training records of which the vectors are measured that heads standardise."""
_SCORED_OF_TRAINING = 500
"""Most training records that choose the checkpoint where no validation record has a label."""


class FineTuneJob(Job[FineTuneScores]):
    """Fine-tuning on one fold of a table.

    Args:
        recipe: what is trained.
        engine: how it is spread.
        assays: opened, with the parts of the fold.

    Raises:
        ValueError: a task cannot be trained on these parts.
    """

    bounds_spikes = True
    shape: EsmShape
    num_parameters: int
    num_trained: int

    def __init__(self, recipe: Recipe, engine: Engine, assays: Assays) -> None:
        self.recipe, self.engine, self.assays = recipe, engine, assays
        self.tasks = assays.objectives
        self.lines: list[str] = []
        init, seed = recipe.model.init, recipe.run.seed
        self.source = open_trained_model(init, ENCODER) if init is not None else random_encoder(recipe.model, seed)
        """The encoder before fine-tuning."""
        self.features = self._cached(self.source)

    @property
    def objectives(self) -> Sequence[LossTerm]:
        """One for each table `[[tasks]]` of the recipe."""
        return [LossTerm(task.settings.name, task.settings.weight) for task in self.tasks]

    keeps_best = True  # what the run publishes is made of it

    @property
    def patience(self) -> int | None:
        """Validations without a gain after which training stops, from the recipe."""
        return self.recipe.run.patience

    def fingerprints(self) -> dict[str, str]:
        """Hashes of proteins with labels, and of the parts."""
        return {"corpus": self.assays.fingerprint, "split": self.assays.parts.fingerprint}

    def description(self) -> dict[str, Any]:
        """Proteins, labels and the split."""
        return self.assays.description()

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        """An encoder with heads. What is frozen is read again whenever the run is continued."""
        settings, seed = self.recipe.adaptation, self.recipe.run.seed
        start = self.source
        self.shape = start.shape
        before = None if described is None else ModelRecord.of(described)
        plan = plan_of(settings, start.shape) if settings.kind == "lora" else None
        inputs = self._inputs(before)
        with torch.device("meta"):
            model = FineTuneModel(
                start.shape,
                self.tasks,
                self.recipe.heads,
                features=self.features,
                inputs=inputs,
            )
        adapt(model, settings, plan)
        first = initializers(model, start.weights, seed, plan)
        records = {name: scale.record for name, scale in inputs.items()}
        record = ModelRecord(encoder=start.shape, adapters=plan, inputs=records)
        if before not in (None, record):
            raise ValueError(
                f"{self.recipe.run.directory} was started with another model than model.init now names: it was "
                f"{before}, it is {record}; restore it, or choose another run.directory"
            )
        frozen = None if self.features is None else start.content_hash()
        return ModelBundle(model, asdict(record), first, width=start.shape.dim, frozen=frozen)

    def _pooling_of_levels(self) -> dict[str, Pooling]:
        """What heads of residues, or pairs of them, and of sequences read; attention too has the mean."""
        levels, found = {task.settings.level for task in self.tasks}, dict[str, Pooling]()
        if levels & {"residue", "pair"}:
            found["residue"] = "residue"
        if "sequence" in levels:
            found["sequence"] = "begin" if self.recipe.heads.pooled_by == "begin" else "mean"
        return found

    def poolings(self) -> list[Pooling]:
        """What is kept of a frozen encoder; nothing where it learns, or where the heads learn what they pool."""
        of_levels = self._pooling_of_levels()
        learns_to_pool = "sequence" in of_levels and self.recipe.heads.pooled_by == "attention"
        return [] if self.recipe.adaptation.kind != "frozen" or learns_to_pool else [*of_levels.values()]

    def _cached(self, start: TrainedModel) -> CachedFeatures | None:
        """The features of a frozen encoder, where they can be kept; collective."""
        settings = self.recipe.adaptation
        if not (poolings := self.poolings()):
            return None
        features, lines = cached_features(
            start,
            self.documents(),
            self.assays.reader,
            self.recipe.data,
            poolings,
            Path(self.recipe.data.store_dir),
            settings.cache_gb,
            device=self.engine.device,
            on_each_node=self.engine.on_each_node,
        )
        self.lines += lines
        return features

    def _inputs(self, before: ModelRecord | None) -> dict[str, InputScale]:
        """What scales the vectors that heads read: as the run began, or of the training part; collective.

        They are whitened. Where all of the encoder learns, only their channels are standardised, because directions
        move then; transformers' heads read vectors as they are.
        """
        if before:
            return {name: record.scale for name, record in before.inputs.items()}
        if self.recipe.heads.kind.exports_to_transformers:
            return {}
        chosen = self.assays.drawn_of_training(self.recipe.run.seed, _MEASURED)

        def measured() -> dict[str, InputScale]:
            documents, reader, device = self.documents(), self.assays.reader, self.engine.device
            return {
                level: InputScale.of(
                    self.features.of(pooling, chosen, documents)
                    if self.features is not None
                    else (
                        vectors
                        for _, vectors in vectors_of(
                            self.source, documents, reader, self.recipe.data, pooling, chosen, device
                        )
                    ),
                    whitened=self.recipe.adaptation.kind != "full",
                )
                for level, pooling in self._pooling_of_levels().items()
            }

        with ProgressBar("measuring the vectors that heads read", after_s=2.0, speaks=self.engine.is_main):
            return self.engine.on_main(measured)

    def documents(self) -> EncoderInputs:
        """What the encoder reads of each record: all of it, with its linkers."""
        store = self.assays.store
        linkers = self.assays.labels.linkers(np.arange(store.num_records))
        in_slots = linkers + (linkers[:, 1:] > linkers[:, :1])  # the begin token is slot 0
        return EncoderInputs(store.fingerprint, store.offsets, in_slots)

    def facts(self) -> list[tuple[str, str]]:
        """The model, what of it learns, proteins, tasks and the split."""
        kind = f"{'ESM C' if self.shape.is_modern else 'ESM-2'}, {self.shape.layers} layers, width {self.shape.dim}"
        source = self.recipe.model.init or self.recipe.model.preset
        learns = {"frozen": "heads alone", "lora": "heads and adapters", "full": "everything"}
        trained = f"{learns[self.recipe.adaptation.kind]}, {self.num_trained:,} parameters"
        return [("model", f"{source}: {kind}"), ("trained", trained), *self.assays.facts()]

    @property
    def caveats(self) -> list[str]:
        """What was decided about tables and split, and what of validation and model limits the scores."""
        lines = [*self.assays.said]
        if self.scored_part == "training":
            scored = f"{len(self._scored):,} of them are scored"
            lines.append(f"validation: {NO_VALIDATION}; the checkpoint is chosen on training rows, {scored}")
        if self.recipe.model.init is None:
            lines.append("model: its encoder starts from random weights; model.init names a pretrained one")
        return lines

    def set_up(self, model: nn.Module) -> list[str]:
        """Set the encoder up, unless its features are cached."""
        recipe, own = self.recipe, cast(FineTuneModel, model)
        self.num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        lines = [*self.lines, *self.caveats]
        if own.encoder is not None:
            slots = recipe.data.bin_tokens * recipe.data.bins_per_forward
            lines += set_up_encoder(own.encoder, self.engine, recipe.compute, recipe.parallel.exchange, slots)
        return lines

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        """Heads, adapters and layers, each with its factor on the learning rate."""
        return parameter_groups(model, self.recipe.adaptation, self.recipe.optimizer)

    def loader(self, cursor: Cursor, first_step: int) -> Loader:
        """Labelled bins of the training part."""
        engine, plan = self.engine, self.assays.plan(self.recipe.run.seed)
        return Loader(self.assays.contents, plan, cursor, first_step, engine.data_rank, engine.data_world_size)

    def flops(self, step: Step, result: StepResult) -> float:
        """FLOPs that the step needed of the encoder, over all ranks; 0 where its features are cached."""
        if self.features is not None:
            return 0.0
        times = 1 if self.recipe.adaptation.kind == "frozen" else BACKWARD_AND_FORWARD
        levels = [task.settings.level for task in self.tasks]
        if "pair" in levels or ("sequence" in levels and self.recipe.heads.pooled_by != "begin"):
            read = step.num_tokens
        else:  # and begin tokens, one in hundreds, which are left out
            read = sum(count for count, level in zip(result.counts, levels, strict=True) if level == "residue")
        return times * encoder_flops(self.shape, step.num_tokens, step.squared_lengths, read)

    def evaluate(self, model: nn.Module) -> FineTuneScores:
        """Scores of the validation part, or of training records where nothing of it has a label; collective."""
        part = "validation" if self.scored_part == "validation" else "training rows"
        return evaluate(model, self.assays, self.tasks, self._scored, part, self.engine)

    @property
    def scored_part(self) -> str:
        """What chooses the checkpoint, as metrics.jsonl names it."""
        return self.assays.chosen_on

    @cached_property
    def _scored(self) -> NDArray[np.int64]:
        """The records that choose the checkpoint, rising."""
        if self.scored_part == "validation":
            records = self.assays.records(VALIDATION)
            return records[~self.assays.calibrates[records]]
        return self.assays.drawn_of_training(self.recipe.run.seed, _SCORED_OF_TRAINING)

    def require_entries(self, entries: Mapping[str, Mapping[str, Any]], cursor: Cursor) -> None:
        """Nothing to check: a table is whole before the first step, and its fingerprint covers it."""

    def publish(self, run: RunDirectory) -> None:
        """The bundle, of the best checkpoint."""
        assays, recipe = self.assays, self.recipe
        checkpoint = best_valid(run.checkpoints, lambda found: read_tensors(found, "model"))
        described, step = ModelRecord.of(run.model()), checkpoint.trainer.step
        scored = [
            line["validation"]
            for line in records.read(run.metrics)
            if line.get("step") == step and "validation" in line
        ]
        lengths = assays.reader.num_residues(assays.records(TRAIN))
        reading = {f.name: getattr(recipe.data, f.name) for f in fields(ReadingSettings) if f.init}
        manifest = BundleManifest(
            tasks=tuple(self.tasks),
            heads=recipe.heads,
            adaptation=recipe.adaptation,
            reading=ReadingSettings(**reading),
            encoder=self.shape,
            adapters=described.adapters,
            inputs=described.inputs,
            base=find_base(recipe.model, recipe.run.seed, self.source),
            labels=assays.fingerprint,
            split=assays.parts.fingerprint,
            split_method=assays.division.method,
            training_residues=(int(lengths.min()), int(lengths.max())),
            step=step,
            chosen_on=self.scored_part,
            validation=scored[-1] if scored else {},
            versions=versions(),
            code=run.read().code,
        )
        write_bundle(
            run.root / "bundle",
            manifest,
            checkpoint.tensors,
            [assays.store.header(record) for record in range(assays.store.num_records)],
            assays.parts,
            read_wild_types(recipe.data.wild_type, recipe.data.ingest.content) if recipe.data.wild_type else None,
        )

    def sample_names(self, samples: NDArray[np.int64]) -> list[str]:
        """The id of each record of the tables."""
        return [self.assays.store.header(record) for record in samples.tolist()]

    def corpus_progress(self, cursor: Cursor) -> CorpusProgress | None:
        """Proteins and passes."""
        passes = cursor.epoch
        return CorpusProgress(self.assays.num_seen(self.recipe.run.seed, passes), float(passes)) if passes else None
