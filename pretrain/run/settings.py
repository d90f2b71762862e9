"""What a recipe says about a run: where it lives, and how often it reports.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing.
"""

from dataclasses import dataclass

from data.recipe.setting import IDENTITY, OPERATIONAL, require, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Where a run lives and how often it reports, evaluates and saves."""

    directory: str = setting(OPERATIONAL, "run directory; the same directory continues the run", unit="path")
    seed: int = setting(IDENTITY, "keys every random draw", default=0)
    log_every: int = setting(OPERATIONAL, "between two lines of metrics", unit="steps", default=10)
    evaluate_every: int = setting(OPERATIONAL, "between two validations", unit="steps", default=1000)
    validation_sequences: int = setting(
        OPERATIONAL, "most validation proteins scored at a time", unit="sequences", default=2000
    )
    checkpoint_every: int = setting(OPERATIONAL, "between two checkpoints", unit="steps", default=1000)
    keep_checkpoints: int = setting(OPERATIONAL, "newest checkpoints that are kept", default=2)
    shared: bool = setting(
        OPERATIONAL,
        "whether others may read the run's checkpoints, as far as your umask lets them; if not, they are yours alone",
        default=False,
    )
    trackers: tuple[str, ...] = setting(
        OPERATIONAL, "experiment trackers beside metrics.jsonl: 'wandb', 'tensorboard'", default=()
    )

    def __post_init__(self) -> None:
        for name in ("log_every", "evaluate_every", "validation_sequences", "checkpoint_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, f"run.{name}", getattr(self, name), "it must be at least 1")
        unknown = set(self.trackers) - {"wandb", "tensorboard"}
        require(not unknown, "run.trackers", list(self.trackers), "allowed are 'wandb' and 'tensorboard'")
