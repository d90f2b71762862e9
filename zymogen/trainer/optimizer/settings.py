"""What a recipe says about the optimizer and about the length and rate of training.

In: values of a recipe. Out: frozen dataclasses whose values are checked. Kept: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from zymogen.settings.extension import FORM, require_name
from zymogen.settings.options import require_options
from zymogen.settings.section import IDENTITY, SCHEDULE, Section, require, setting

PEAK_LR = 4e-4
"""Peak learning rate where a recipe gives none: ESM-2's (Lin et al. 2023, supplement A)."""
TRAINED_PEAK_LR = PEAK_LR / 10
"""The same for weights that are trained already: ESM-2's rate ends at a tenth of its peak (Lin et al. 2023, supplement
A), so training continues at the rate at which the published weights were last trained."""
WARMUP = 2000 * 2**21 / 10**12
"""Share of the warm-up where a recipe gives none: ESM-2's 2,000 updates of 2**21 tokens, of 10**12 tokens."""
_TOTAL = 10**12
OPTIMIZERS = ("adamw", "muon")
"""Optimizers of ours (`kinds`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings(Section):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); defaults are ESM-2's (Lin et al. 2023, supplement A).

    With Muon (Jordan et al. 2024), AdamW moves what is no matrix of the encoder's layers. A class of the user's
    (`kinds.OptimizerKind`) reads `options`.
    """

    section: ClassVar = "optimizer"
    name: str = setting(
        IDENTITY,
        f"'adamw', or 'muon' for the matrices of the layers and AdamW for the rest, or {FORM} for a class of your own",
        "adamw",
        extends="class",
    )
    options: dict[str, Any] = setting(IDENTITY, "settings of a class of your own", {})
    momentum: float = setting(IDENTITY, "decay of Muon's momentum", 0.95, only=("name", ("muon",)), at_least=0, below=1)
    newton_schulz: Literal["float32", "bfloat16"] = setting(
        IDENTITY,
        "dtype of Muon's iteration; 'bfloat16' is cheaper on a GPU, and engines agree less closely",
        "float32",
        only=("name", ("muon",)),
    )
    betas: tuple[float, float] = setting(IDENTITY, "decay of both of AdamW's moments", (0.9, 0.98), at_least=0, below=1)
    eps: float = setting(IDENTITY, "added to the root of the second moment", 1e-8, above=0)
    weight_decay: float = setting(IDENTITY, "decoupled decay of matrices", 0.01, "1/step, times lr", at_least=0)
    clip_norm: float = setting(IDENTITY, "largest global gradient norm", 1.0, above=0)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        require_name("optimizer.name", self.name, OPTIMIZERS)
        require_options("optimizer", self.name, self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings(Section):
    """Length of training and learning rate, both by real tokens seen; defaults are ESM-2's."""

    section: ClassVar = "schedule"
    peak_lr: float | None = setting(
        SCHEDULE,
        f"learning rate at the end of the warm-up; where none is given {PEAK_LR:g}, and with model.init a tenth of it",
        None,
        above=0,
    )
    total_tokens: int = setting(SCHEDULE, "training ends here", _TOTAL, "tokens", above=0)
    passes: float | None = setting(
        SCHEDULE,
        "length of the training as passes over a corpus that is one and whole, in place of total_tokens",
        None,
        "passes",
        above=0,
    )
    warmup: float | None = setting(
        SCHEDULE,
        f"share of total_tokens over which the rate rises from 0; {WARMUP:.4f} where no warm-up is given",
        None,
        "fraction",
        at_least=0,
        below=1,
    )
    warmup_tokens: int | None = setting(
        SCHEDULE, "length of that rise in tokens, in place of warmup", None, "tokens", at_least=0
    )
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
        if self.passes is not None and self.total_tokens != _TOTAL:
            raise ValueError(
                f"schedule.passes is {self.passes:g} and schedule.total_tokens is {self.total_tokens}; give one of "
                "them: schedule.passes=none takes the passes out, schedule.total_tokens=none the tokens"
            )
        if self.warmup is not None and self.warmup_tokens is not None:
            raise ValueError(
                f"schedule.warmup is {self.warmup} and schedule.warmup_tokens is {self.warmup_tokens}; give one of "
                "them: schedule.warmup=none takes the share out, schedule.warmup_tokens=none the tokens"
            )
        decayed = self.decay_end * self.total_tokens
        until = f"{decayed:.0f} tokens (schedule.decay_end x schedule.total_tokens)"
        if self.warmup_tokens is None:
            said = f"it must be below schedule.decay_end = {self.decay_end}, and end before the decay does, at {until}"
            require(self.warmup_length < decayed, "schedule.warmup", self.warmup, said)
        else:
            said = (
                f"it must end before the decay does, at {until}: give the warm-up as a share of the training in its "
                f"place, schedule.warmup_tokens=none schedule.warmup={WARMUP:.4f}"
            )
            require(self.warmup_length < decayed, "schedule.warmup_tokens", self.warmup_tokens, said)

    @property
    def warmup_length(self) -> int:
        """Tokens of the warm-up, however it was given."""
        return int(self.resolved({f.name: getattr(self, f.name) for f in fields(self)})["warmup_tokens"])

    def in_tokens(self, tokens_per_pass: int) -> "ScheduleSettings":
        """The same with its length in tokens, if it is given in passes.

        Args:
            tokens_per_pass: as `data.order.plan_size.tokens_per_epoch` counts them.
        """
        if self.passes is None:
            return self
        return replace(self, passes=None, total_tokens=max(1, round(self.passes * tokens_per_pass)))

    def require_tokens(self) -> None:
        """Refuse a length in passes, where nothing counts the tokens of one.

        Raises:
            ValueError: the length is given in passes.
        """
        said = "this program does not count the tokens of a pass; give the length as schedule.total_tokens"
        require(self.passes is None, "schedule.passes", self.passes, said)

    @property
    def peak(self) -> float:
        """The peak rate, given or not."""
        return PEAK_LR if self.peak_lr is None else self.peak_lr

    @classmethod
    def resolved(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The warm-up in tokens and the peak rate as a number, however they were given."""
        given = dict(values)
        share, tokens, peak = given.pop("warmup", None), given.get("warmup_tokens"), given.get("peak_lr")
        if tokens is None:
            given["warmup_tokens"] = round((WARMUP if share is None else share) * given["total_tokens"])
        if peak is None:
            given["peak_lr"] = PEAK_LR
        return given
