"""What a recipe says about a run: where it lives, and how often it reports.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from data.recipe.interval import UNIT, Every, interval, seconds
from data.recipe.setting import OPERATIONAL, SCHEDULE, Section, setting
from data.recipe.settings import seed_setting


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(Section):
    """Where a run lives and how often it reports, evaluates and saves."""

    section: ClassVar = "run"
    directory: str = setting(OPERATIONAL, "run directory; the same directory continues the run", unit="path")
    seed: int = seed_setting()
    log_every: Every = setting(OPERATIONAL, "between two lines of metrics", "10 s", UNIT)
    evaluate_every: Every = setting(
        OPERATIONAL, "between two validations; the last step has one in any case", "10 min", UNIT
    )
    validation_sequences: int = setting(
        OPERATIONAL, "most validation proteins scored at a time", 2000, "sequences", at_least=1
    )
    checkpoint_every: Every = setting(
        OPERATIONAL, "between two checkpoints; the last step has one in any case", "10 min", UNIT
    )
    keep_checkpoints: int = setting(OPERATIONAL, "newest checkpoints that are kept", 2, at_least=1)
    shared: bool = setting(
        OPERATIONAL,
        "whether others may read the run's checkpoints, as far as your umask lets them; if not, they are yours alone",
        False,
    )
    saves_may_fail_for: str = setting(
        OPERATIONAL,
        "how long saves may fail before the run ends, from the first one that failed",
        "1 h",
        "a time: '30 s', '10 min', '2 h'",
    )
    trackers: tuple[Literal["wandb", "tensorboard", "trackio"], ...] = setting(
        OPERATIONAL, "experiment trackers beside metrics.jsonl", ()
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for name in ("log_every", "evaluate_every", "checkpoint_every"):
            interval(f"run.{name}", getattr(self, name))
        seconds("run.saves_may_fail_for", self.saves_may_fail_for)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectingRunSettings(RunSettings):
    """The same for a job that keeps its best checkpoint, where validations decide which one and how long it trains."""

    evaluate_every: int = setting(
        SCHEDULE, "between two validations; the last step has one in any case", 100, "steps", at_least=1
    )
    patience: int | None = setting(
        SCHEDULE,
        "validations in a row without a better score after which training ends; none: it ends with its last token",
        None,
        at_least=1,
    )
