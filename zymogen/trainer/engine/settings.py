"""What a recipe says about processes, and what of a recipe a launch reads.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from zymogen.settings.interval import TIME
from zymogen.settings.section import OPERATIONAL, Section, setting
from zymogen.trainer.optimizer.settings import OptimizerSettings
from zymogen.trainer.run.settings import RunSettings

ExchangeRequest = Literal["auto", "ulysses", "all_gather"]
"""What a user may ask ranks that share a batch to exchange for attention."""
PRECISION = "bf16"
"""What is computed in where nothing is asked for: what every file of accelerate_configs/ says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelSettings(Section):
    """How a run is spread, as far as an Accelerate YAML cannot say it; everything else about that is in the YAML."""

    section: ClassVar = "parallel"
    context: int = setting(
        OPERATIONAL, "processes that share every batch, each with a part of its slots", 1, "processes", at_least=1
    )
    exchange: ExchangeRequest = setting(
        OPERATIONAL,
        "what they exchange for attention: heads ('ulysses') or keys and values; 'auto': heads, if they divide",
        "auto",
        only=("context", ()),
    )
    timeout: str = setting(
        OPERATIONAL,
        "longest wait of a process for the others in a step, before it ends; work of one process has six hours",
        "30 min",
        TIME,
    )


class LaunchSettings(Protocol):
    """The sections that a launch reads of a recipe, whatever job the recipe is for."""

    @property
    def run(self) -> RunSettings:
        """Its directory and trackers."""

    @property
    def data(self) -> Any:
        """Its `bins_per_step`, which the ranks share."""

    @property
    def optimizer(self) -> OptimizerSettings:
        """Its name, and the norm that gradients are clipped to."""

    @property
    def compute(self) -> Any:
        """Its `checkpointing` and `compile`; a YAML that sets the same is refused."""

    @property
    def parallel(self) -> ParallelSettings:
        """How many processes share a batch."""


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """What a launch reads of a command that trains nothing (a `LaunchSettings`)."""

    run: RunSettings
    data: Any
    optimizer: OptimizerSettings = field(default=OptimizerSettings())
    compute: Any
    parallel: ParallelSettings = field(default=ParallelSettings())
