"""The recipe of fine-tuning: the sections of its rooms, and what must hold across them.

In: sections, each declared beside what it configures. Out: `Recipe`, which `zymogen.settings.toml_file` reads from TOML
and overrides. Kept: nothing. Torch is not imported, so that `--help` and a mistake in a recipe answer at once.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from data.order.settings import PackingSettings
from data.settings import ContentSettings
from finetune.adaptation.settings import AdaptationSettings
from finetune.heads.settings import HeadSettings
from finetune.splits.settings import SplitSettings
from finetune.tables.settings import TableSettings
from finetune.tasks.settings import TaskSettings
from pretrain.model.settings import ComputeSettings, ModelSettings
from zymogen.settings.section import IDENTITY, OPERATIONAL, require, setting
from zymogen.trainer.engine.settings import ParallelSettings
from zymogen.trainer.optimizer.settings import OptimizerSettings, ScheduleSettings
from zymogen.trainer.run.settings import SelectingRunSettings

PEAK_LR = {"frozen": 1e-4, "lora": 3e-4, "full": 2e-5}
"""Peak learning rate of the encoder where a recipe gives none, by what of it learns; heads have `head_lr` times that.
LoRA: Schmirler et al. 2024 (doi:10.1038/s41467-024-51844-2); full: within the 1e-5 to 5e-5 that BERT-like encoders
take (Devlin et al. 2019, appendix A.3)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AssaySettings(PackingSettings, TableSettings):
    """Everything between assay tables and batches.

    There is no curriculum, as a protein is never cropped by a draw, and no bin is skipped, as one number would be of
    other proteins in each member of a run.
    """

    section: ClassVar = "data"
    crop_tokens: int = setting(
        IDENTITY, "longest document, begin and end included; data.too_long says what becomes of a longer protein", 1024
    )
    bin_tokens: int = setting(
        IDENTITY, "slots of one bin, the unit that sequences are packed into", 4096, "tokens", at_least=1
    )
    bins_per_step: int = setting(IDENTITY, "bins of one optimizer step, over all ranks", 4, "bins", at_least=1)
    temperature: float = setting(
        IDENTITY,
        "T of the weights n^(1/T) of several tables of n training records: 1 draws each record once a pass, more "
        "draws from small tables more often",
        1.0,
        at_least=1,
    )
    bins_per_forward: int = setting(
        OPERATIONAL, "bins that one rank takes through one forward pass", 1, "bins", at_least=1
    )
    store_dir: str = setting(
        OPERATIONAL, "where stores of proteins, labels and features are built and reused", "runs/stores", "path"
    )
    ingest: ContentSettings = field(default=ContentSettings())

    def __post_init__(self) -> None:
        TableSettings.__post_init__(self)
        require(bool(self.table), "data.table", list(self.table), "name at least one table of assays")
        said = f"it must lie between 3 (begin, one residue, end) and data.bin_tokens = {self.bin_tokens}"
        require(3 <= self.crop_tokens <= self.bin_tokens, "data.crop_tokens", self.crop_tokens, said)
        said = "it mixes several tables, and data.table names one; leave it out"
        require(self.temperature == 1 or len(self.table) > 1, "data.temperature", self.temperature, said)

    @property
    def documents_per_bin(self) -> int:
        """Most documents that one bin may hold, one for 4 slots; it gives `Batch.cu_seqlens` a fixed length."""
        return max(1, self.bin_tokens // 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleRunSettings(SelectingRunSettings):
    """The same for a run of several members: one for each seed, and for each fold of the split."""

    seeds: int = setting(
        IDENTITY,
        "models that are trained, with the seeds run.seed, run.seed + 1, ...; their mean predicts, and their spread is "
        "reported",
        1,
        "models",
        at_least=1,
        at_most=100,
    )


PASSES = 10.0
"""Length of the training where a recipe gives none."""
WARMUP = 0.1
"""Share of the warm-up where a recipe gives none: a fine-tuning run has few steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that describes one fine-tuning run."""

    run: EnsembleRunSettings
    model: ModelSettings
    data: AssaySettings
    tasks: tuple[TaskSettings, ...]
    split: SplitSettings
    heads: HeadSettings = field(default=HeadSettings())
    adaptation: AdaptationSettings = field(default=AdaptationSettings())
    optimizer: OptimizerSettings = field(default=OptimizerSettings(betas=(0.9, 0.999)))
    schedule: ScheduleSettings = field(default=ScheduleSettings())
    compute: ComputeSettings = field(default=ComputeSettings())
    parallel: ParallelSettings = field(default=ParallelSettings())

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", self._schedule())
        names = [task.name for task in self.tasks]
        require(bool(names), "tasks", names, "describe at least one task, as a table [[tasks]]")
        said = "two tasks have one name; give each its own"
        require(len(set(names)) == len(names), "tasks.name", names, said)
        size, slots = self.parallel.context, self.data.bin_tokens
        said = f"it must be a multiple of parallel.context = {size}, so that every process gets equally many slots"
        require(slots % size == 0, "data.bin_tokens", slots, said)
        pairs = [task.name for task in self.tasks if task.level == "pair"]
        said = f"the tasks {pairs} are about pairs of residues, which may lie on different processes; set it to 1"
        require(size == 1 or not pairs, "parallel.context", size, said)

    def check_classes(self) -> None:
        """Import the classes of the user's, and check their settings: at a start alone.

        Raises:
            ValueError: one cannot be imported, or a setting is not allowed.
        """
        head = self.heads.kind
        for task in self.tasks:
            task.kind.check()
            head.require_level(task)

    def _schedule(self) -> ScheduleSettings:
        """The schedule with what follows from the adaptation, where the recipe leaves it open."""
        given, default = self.schedule, ScheduleSettings()
        chosen: dict[str, Any] = {}
        if given.peak_lr is None:
            chosen["peak_lr"] = PEAK_LR[self.adaptation.kind]
        if given.warmup is None and given.warmup_tokens is None:
            chosen["warmup"] = WARMUP
        if given.passes is None and given.total_tokens == default.total_tokens:
            chosen["passes"] = PASSES
        return replace(given, **chosen)
