"""The manifest of a bundle: everything about a fine-tuned model except its numbers.

In: what a run knows, or the bytes of bundle.json, which nobody vouches for. Out: `BundleManifest`, or JSON. Kept:
nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from finetune.adaptation.adapter import AdapterPlan
from finetune.adaptation.settings import AdaptationSettings
from finetune.heads.input_scale import InputScaleRecord
from finetune.heads.settings import HeadSettings
from finetune.results.results import Ensemble, Results
from finetune.tables.settings import TableSettings
from finetune.tasks.task import Task
from pretrain.model.presets import EsmShape
from zymogen.settings import json_file
from zymogen.settings.extension import hash_of
from zymogen.settings.section import IDENTITY, setting

FORMAT = "zymogen.bundle/3"
MANIFEST, WEIGHTS, SPLIT, WILD_TYPES = "bundle.json", "model.safetensors", "split.csv", "wild_type.fasta"
FILES = (WEIGHTS, SPLIT, WILD_TYPES)
"""Files whose hashes a manifest holds; the last one is only there for a model of mutations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingSettings(TableSettings):
    """How a table is read."""

    crop_tokens: int = setting(IDENTITY, "longest document, begin and end included", 1024, at_least=3)
    bin_tokens: int = setting(IDENTITY, "slots of one bin", 4096, "tokens", at_least=3)

    bins_per_step: ClassVar[int] = 1 << 20
    """More than there are processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecord:
    """The model of a run in its run.json, without what the recipe says of it."""

    encoder: EsmShape
    adapters: AdapterPlan | None
    inputs: dict[str, InputScaleRecord]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        """The record as it was written.

        Raises:
            ValueError: it is the model of another kind of run.
        """
        return json_file.validate(cls, json.dumps(described).encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """The encoder that training started from, and of which a bundle holds no frozen weight."""

    init: str | None
    """Where it was: a run, a model's directory, a Hub name; None for random weights."""
    preset: str | None
    """The preset of random weights."""
    seed: int
    """Their seed."""
    dropout: float
    content_hash: str
    """Hash of all of its weights (`pretrain.trained_model.TrainedModel.content_hash`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleManifest:
    """What bundle.json says."""

    tasks: tuple[Task, ...]
    heads: HeadSettings
    adaptation: AdaptationSettings
    reading: ReadingSettings
    encoder: EsmShape
    adapters: AdapterPlan | None
    inputs: dict[str, InputScaleRecord]
    """What standardises the vectors of sequences and of residues before heads read them."""
    base: BaseModel
    labels: str
    """Fingerprint of the proteins and of all labels."""
    split: str
    """Fingerprint of the parts, which split.csv lists."""
    split_method: str
    training_residues: tuple[int, int]
    """Residues of the shortest and of the longest protein that trained."""
    step: int
    """Optimizer steps of the checkpoint, the one with the best scores of `chosen_on`."""
    chosen_on: str
    """What chose it: "validation", or "training" where no validation record has a label."""
    validation: dict[str, dict[str, float | None]]
    """Its scores of validation: task -> name of a number -> number; None for one that is not defined."""
    versions: dict[str, str]
    code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the file of each class of the user's, by the setting that named it."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each of `FILES` that the folder has."""
    evaluation: Results | None = None
    """Scores of the tested part and calibration of this model alone, once a run has come to its end; None before."""
    ensemble: Ensemble | None = None
    """All models of the run, once it has come to its end; None where this is the only one."""
    format: str = FORMAT

    def require_same_code(self) -> None:
        """Refuse other code of a class of the user's than trained.

        Raises:
            ValueError: its module cannot be imported, or its file is another.
        """
        named = {f"tasks.{number}.type": task.settings.type for number, task in enumerate(self.tasks)}
        named["heads.form"] = self.heads.form
        for name, sha256 in self.code.items():
            if name in named and (found := hash_of(name, named[name])) != sha256:
                raise ValueError(
                    f"the file of {named[name]} is not the one that trained: its SHA-256 is {found}, the bundle "
                    f"says {sha256}; restore it"
                )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in the folder of a bundle.

        Raises:
            ValueError: there is none, or it is damaged or of another version.
        """
        return json_file.read(cls, folder / MANIFEST, "bundle", "copy the bundle again, or name bundle/ of a run")
