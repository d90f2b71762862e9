"""Numbers of a line of progress.

In a recipe beside this file:

[run]
console = ["loss", "console_numbers:tokens_a_day", "console_numbers:SmoothLoss"]
"""

from collections.abc import Mapping
from typing import Any


def tokens_a_day(line: Mapping[str, Any]) -> str:
    """The tokens of a day at the speed since the line before."""
    return f"{line['tokens_per_s'] * 86_400 / 1e9:.3f}G tokens/day"


class SmoothLoss:
    """The mean of the losses so far, of which later ones count more."""

    mean: float | None = None

    def __call__(self, line: Mapping[str, Any]) -> str | None:
        """Return the mean; nothing before the first step with a target."""
        loss = line["loss"]
        if loss is not None:
            self.mean = loss if self.mean is None else 0.9 * self.mean + 0.1 * loss
        return None if self.mean is None else f"smooth {self.mean:.3f}"
