"""What a recipe says about a run: where it lives, and how often it reports.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from zymogen.settings.extension import FORM, require_name
from zymogen.settings.interval import TIME, UNIT, Every
from zymogen.settings.section import OPERATIONAL, SCHEDULE, Section, seed_setting, setting
from zymogen.trainer.run.console_numbers import DEFAULT, OWN

_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/(?!\.\.?(/|$))[\w.=+-]+)+")
"""Places in stores that can make an object only if there is none; only S3 was tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(Section):
    """Where a run lives and how often it reports, evaluates and saves."""

    section: ClassVar = "run"
    directory: str = setting(OPERATIONAL, "run directory; the same directory continues the run", unit="path")
    seed: int = seed_setting()
    log_every: Every = setting(OPERATIONAL, "between two lines of metrics", "10 s", UNIT)
    console: tuple[str, ...] = setting(
        OPERATIONAL,
        f"numbers of a line of progress: {', '.join(OWN)}, or {FORM} for a function or class of your own",
        DEFAULT,
        extends="number",
    )
    evaluate_every: Every = setting(
        OPERATIONAL, "between two validations; the last step has one in any case", "10 min", UNIT
    )
    validation_sequences: int = setting(
        OPERATIONAL, "most validation proteins scored at a time", 2000, "sequences", at_least=1
    )
    checkpoint_every: Every = setting(
        OPERATIONAL, "between two checkpoints; the last step has one in any case", "10 min", UNIT
    )
    compare_copies_every: int = setting(
        OPERATIONAL,
        "between two comparisons of ranks that hold the same weights, which a save makes too; 0: never, not at saves",
        100,
        "steps",
        at_least=0,
    )
    keep_checkpoints: int = setting(OPERATIONAL, "newest checkpoints that are kept", 2, at_least=1)
    keep_checkpoints_every: int | None = setting(
        OPERATIONAL,
        "multiples of so many steps are saved and kept for good, beside the newest; none: no such checkpoints",
        None,
        "steps",
        at_least=1,
    )
    shared: bool = setting(
        OPERATIONAL,
        "let others read checkpoints, predictions and report, as far as your umask does when these are made; false: "
        "you alone",
        False,
    )
    checkpoint_url: str | None = setting(
        OPERATIONAL,
        "place in an object store, of this run alone, that has each checkpoint, too; another machine continues from it",
        None,
        "a URL: 's3://bucket/name'",
    )
    saves_may_fail_for: str = setting(
        OPERATIONAL,
        "how long saves may fail before the run ends, from the first one that failed",
        "1 h",
        TIME,
    )
    grace_s: float | None = setting(
        OPERATIONAL,
        "seconds from SIGTERM to SIGKILL: a stopped run saves only if that fits; none: it takes the time it needs",
        None,
        "seconds",
        above=0,
    )
    spike_nats: float | None = setting(
        OPERATIONAL,
        "rise of a step's loss, above the median of the steps before it, at which the run falls back; none: at no rise",
        2.0,
        "nats",
        above=0,
    )
    read_late: Literal["auto", "always", "never"] = setting(
        OPERATIONAL,
        "whether a step's results are read after the next step is queued, so that no GPU waits for the host; 'auto': "
        "on GPUs",
        "auto",
    )
    trackers: tuple[Literal["wandb", "tensorboard", "trackio"], ...] = setting(
        OPERATIONAL, "experiment trackers beside metrics.jsonl", ()
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for name in self.console:
            require_name("run.console", name, OWN)
        if self.checkpoint_url is not None and not _URL.fullmatch(self.checkpoint_url):
            raise ValueError(
                f"run.checkpoint_url: got {self.checkpoint_url!r}, allowed is 's3://bucket/name', where name is this "
                "run's alone; keys and the address of another store than Amazon's are read from the environment (AWS_*)"
            )

    def stays(self, step: int) -> bool:
        """Whether the checkpoint of this step is never removed."""
        return self.keep_checkpoints_every is not None and step % self.keep_checkpoints_every == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectingRunSettings(RunSettings):
    """The same for a job that keeps its best checkpoint, where validations decide which one and how long it trains."""

    evaluate_every: int = setting(
        SCHEDULE, "between two validations; the last step has one in any case", 100, "steps", at_least=1
    )
    spike_nats: float | None = setting(
        OPERATIONAL,
        "rise of a step's loss, above the median of the steps before it, at which the run falls back; none: at no rise",
        None,
        "the unit of the loss",
        above=0,
    )
    patience: int | None = setting(
        SCHEDULE,
        "validations in a row without a better score after which training ends; none: it ends with its last token",
        None,
        at_least=1,
    )
