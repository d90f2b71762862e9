"""The recipe of pretraining: the sections of its components, and what must hold across them.

In: sections, each declared beside what it configures. Out: `Recipe`, which `zymogen.settings.toml_file` reads from TOML
and overrides. Kept: nothing. Torch is not imported, so that `--help` and a mistake in a recipe answer at once.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from data.settings import DataSettings
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ComputeSettings, ModelSettings
from zymogen.settings.extension import FORM, require_name
from zymogen.settings.options import require_options
from zymogen.settings.section import IDENTITY, Section, require, setting
from zymogen.trainer.engine.settings import ParallelSettings
from zymogen.trainer.optimizer.settings import TRAINED_PEAK_LR, OptimizerSettings, ScheduleSettings
from zymogen.trainer.run.settings import RunSettings

OBJECTIVES = ("masked_language",)
"""Objectives of ours (`pretrain.objective`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveSettings(Section):
    """What pretraining optimizes; a class of the user's (`objective.Objective`) reads `options`."""

    section: ClassVar = "objective"
    name: str = setting(
        IDENTITY,
        f"'masked_language': fill in residues that were hidden; or {FORM} for a class of your own",
        "masked_language",
        extends="class",
    )
    options: dict[str, Any] = setting(IDENTITY, "settings of a class of your own", {})

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        require_name("objective.name", self.name, OBJECTIVES)
        require_options("objective", self.name, self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that describes one training run."""

    run: RunSettings
    model: ModelSettings
    data: DataSettings
    objective: ObjectiveSettings = field(default=ObjectiveSettings())
    optimizer: OptimizerSettings = field(default=OptimizerSettings())
    schedule: ScheduleSettings = field(default=ScheduleSettings())
    compute: ComputeSettings = field(default=ComputeSettings())
    parallel: ParallelSettings = field(default=ParallelSettings())

    def __post_init__(self) -> None:
        if self.model.init is not None and self.schedule.peak_lr is None:
            object.__setattr__(self, "schedule", replace(self.schedule, peak_lr=TRAINED_PEAK_LR))
        size, slots = self.parallel.context, self.data.bin_tokens
        said = f"it must be a multiple of parallel.context = {size}, so that every process gets equally many slots"
        require(slots % size == 0, "data.bin_tokens", slots, said)
        heads = PRESETS[self.model.preset].heads if self.model.preset else size
        said = f"{size} processes cannot share the {heads} heads of {self.model.preset}: take 'auto' or 'all_gather'"
        require(self.parallel.exchange != "ulysses" or heads % size == 0, "parallel.exchange", "ulysses", said)
        for name, what in (("streaming", "a stream"), ("mixture", "a mixture"), ("curriculum", "a curriculum")):
            said = f"{what} has no pass whose tokens could be counted first; give the length as schedule.total_tokens"
            is_counted = not getattr(self.data, name) or self.schedule.passes is None
            require(is_counted, "schedule.passes", self.schedule.passes, said)
