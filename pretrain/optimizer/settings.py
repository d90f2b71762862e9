"""What a recipe says about the optimizer and about the length and rate of training.

In: values of a recipe. Out: frozen dataclasses whose values are checked. Kept: nothing.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from data.recipe.setting import IDENTITY, SCHEDULE, require, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); defaults are ESM-2's (Lin et al. 2023, supplement A).

    With Muon (Jordan et al. 2024), AdamW moves what is no matrix of the encoder's layers.
    """

    name: Literal["adamw", "muon"] = setting(
        IDENTITY, "'adamw', or 'muon' for the matrices of the layers and AdamW for the rest", default="adamw"
    )
    momentum: float = setting(IDENTITY, "decay of Muon's momentum", default=0.95)
    newton_schulz: Literal["float32", "bfloat16"] = setting(
        IDENTITY,
        "dtype of Muon's iteration; 'bfloat16' is cheaper on a GPU, and engines agree less closely",
        default="float32",
    )
    betas: tuple[float, float] = setting(IDENTITY, "decay of both of AdamW's moments", default=(0.9, 0.98))
    eps: float = setting(IDENTITY, "added to the root of the second moment", default=1e-8)
    weight_decay: float = setting(IDENTITY, "decoupled decay of matrices", unit="1/step, times lr", default=0.01)
    clip_norm: float = setting(IDENTITY, "largest global gradient norm", default=1.0)

    def __post_init__(self) -> None:
        require(self.name in ("adamw", "muon"), "optimizer.name", self.name, "allowed are 'adamw' and 'muon'")
        iterations = get_args(get_type_hints(type(self))["newton_schulz"])
        said = f"allowed are {' and '.join(map(repr, iterations))}"
        require(self.newton_schulz in iterations, "optimizer.newton_schulz", self.newton_schulz, said)
        require(0.0 <= self.momentum < 1.0, "optimizer.momentum", self.momentum, "it must lie in [0, 1)")
        default = {f.name: f.default for f in fields(self)}
        for name in ("momentum", "newton_schulz"):
            value = getattr(self, name)
            said = (
                f"only Muon reads it, and optimizer.name is {self.name!r}: take it out with optimizer.{name}=none, or "
                "set the name to 'muon'"
            )
            require(self.name == "muon" or value == default[name], f"optimizer.{name}", value, said)
        require(all(0.0 <= b < 1.0 for b in self.betas), "optimizer.betas", self.betas, "both must lie in [0, 1)")
        require(self.eps > 0.0, "optimizer.eps", self.eps, "it must be positive")
        require(self.weight_decay >= 0.0, "optimizer.weight_decay", self.weight_decay, "it must not be negative")
        require(self.clip_norm > 0.0, "optimizer.clip_norm", self.clip_norm, "it must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings:
    """Length of training and learning rate, both by real tokens seen; defaults are ESM-2's."""

    peak_lr: float = setting(SCHEDULE, "learning rate at the end of the warm-up", default=4e-4)
    total_tokens: int = setting(SCHEDULE, "training ends here", unit="tokens", default=10**12)
    warmup_tokens: int = setting(SCHEDULE, "linear rise from 0", unit="tokens", default=2000 * 2**21)
    decay_start: float = setting(
        SCHEDULE,
        "share of total_tokens at which the linear decay begins, but not within the warm-up",
        unit="fraction",
        default=0.0,
    )
    decay_end: float = setting(
        SCHEDULE, "share of total_tokens at which the linear decay ends", unit="fraction", default=0.9
    )
    final_lr: float = setting(SCHEDULE, "learning rate from there on", unit="fraction of peak_lr", default=0.1)

    def __post_init__(self) -> None:
        require(self.peak_lr > 0.0, "schedule.peak_lr", self.peak_lr, "it must be positive")
        require(self.total_tokens > 0, "schedule.total_tokens", self.total_tokens, "it must be positive")
        require(0.0 < self.decay_end <= 1.0, "schedule.decay_end", self.decay_end, "it must lie in (0, 1]")
        require(
            0.0 <= self.decay_start < self.decay_end,
            "schedule.decay_start",
            self.decay_start,
            f"it must be at least 0 and below schedule.decay_end = {self.decay_end}",
        )
        require(0.0 <= self.final_lr <= 1.0, "schedule.final_lr", self.final_lr, "it must lie in [0, 1]")
        require(
            0 <= self.warmup_tokens < self.decay_end * self.total_tokens,
            "schedule.warmup_tokens",
            self.warmup_tokens,
            f"it must be at least 0 and end before the decay does, at {self.decay_end * self.total_tokens:.0f} tokens "
            "(schedule.decay_end x schedule.total_tokens)",
        )
