"""What a recipe says about the optimizer and about the length and rate of training.

In: values of a recipe. Out: frozen dataclasses whose values are checked. Kept: nothing.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from data.recipe.setting import IDENTITY, SCHEDULE, Section, require, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings(Section):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); defaults are ESM-2's (Lin et al. 2023, supplement A).

    With Muon (Jordan et al. 2024), AdamW moves what is no matrix of the encoder's layers.
    """

    section: ClassVar = "optimizer"
    name: Literal["adamw", "muon"] = setting(
        IDENTITY, "'adamw', or 'muon' for the matrices of the layers and AdamW for the rest", "adamw"
    )
    momentum: float = setting(IDENTITY, "decay of Muon's momentum", 0.95, at_least=0, below=1)
    newton_schulz: Literal["float32", "bfloat16"] = setting(
        IDENTITY, "dtype of Muon's iteration; 'bfloat16' is cheaper on a GPU, and engines agree less closely", "float32"
    )
    betas: tuple[float, float] = setting(IDENTITY, "decay of both of AdamW's moments", (0.9, 0.98), at_least=0, below=1)
    eps: float = setting(IDENTITY, "added to the root of the second moment", 1e-8, above=0)
    weight_decay: float = setting(IDENTITY, "decoupled decay of matrices", 0.01, "1/step, times lr", at_least=0)
    clip_norm: float = setting(IDENTITY, "largest global gradient norm", 1.0, above=0)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        default = {f.name: f.default for f in fields(self)}
        for name in ("momentum", "newton_schulz"):
            value = getattr(self, name)
            said = (
                f"only Muon reads it, and optimizer.name is {self.name!r}: take it out with optimizer.{name}=none, or "
                "set the name to 'muon'"
            )
            require(self.name == "muon" or value == default[name], f"optimizer.{name}", value, said)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings(Section):
    """Length of training and learning rate, both by real tokens seen; defaults are ESM-2's."""

    section: ClassVar = "schedule"
    peak_lr: float = setting(SCHEDULE, "learning rate at the end of the warm-up", 4e-4, above=0)
    total_tokens: int = setting(SCHEDULE, "training ends here", 10**12, "tokens", above=0)
    warmup_tokens: int = setting(SCHEDULE, "linear rise from 0", 2000 * 2**21, "tokens")
    decay_start: float = setting(
        SCHEDULE, "share of total_tokens at which the linear decay begins, but not within the warm-up", 0.0, "fraction"
    )
    decay_end: float = setting(
        SCHEDULE, "share of total_tokens at which the linear decay ends", 0.9, "fraction", above=0, at_most=1
    )
    final_lr: float = setting(
        SCHEDULE, "learning rate after the decay", 0.1, "fraction of peak_lr", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        require(
            0.0 <= self.decay_start < self.decay_end,
            "schedule.decay_start",
            self.decay_start,
            f"it must be at least 0 and below schedule.decay_end = {self.decay_end}",
        )
        require(
            0 <= self.warmup_tokens < self.decay_end * self.total_tokens,
            "schedule.warmup_tokens",
            self.warmup_tokens,
            f"it must be at least 0 and end before the decay does, at {self.decay_end * self.total_tokens:.0f} tokens "
            "(schedule.decay_end x schedule.total_tokens)",
        )
