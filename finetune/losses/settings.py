"""What a recipe says about losses, besides each task's `weight` and `imbalance`.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from zymogen.settings.section import IDENTITY, Section, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSettings(Section):
    """How losses of tasks become one."""

    section: ClassVar = "losses"
    weights: Literal["fixed", "learned"] = setting(
        IDENTITY,
        "'fixed': those of the tasks; 'learned': these, times one for each objective that falls with its loss "
        "(Kendall et al., 2018)",
        "fixed",
    )
