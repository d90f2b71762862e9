"""The console of rank 0: one progress line that updates on a terminal, plain lines elsewhere; other ranks are silent.

In: numbers of the step at hand. Out: text on standard error. Kept: the bar on the screen.
"""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class ProgressLine:
    """The progress of training, in tokens.

    Args:
        total: tokens at which training ends.
        speaks: whether this rank says anything.
    """

    def __init__(self, total: int, speaks: bool) -> None:
        self.total = total
        self.speaks = speaks
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        if speaks and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),  # with what follows, 80 columns; a bar would cut it short
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task("training", total=total)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, tokens: int, text: str) -> None:
        """Show where training stands."""
        if self.bar:
            self.bar.update(self.task, completed=tokens, description=text)
        elif self.speaks:
            self.say(f"{100 * min(1.0, tokens / self.total):5.1f} %  {text}")

    def say(self, text: str) -> None:
        """One line that stays."""
        if self.speaks:
            self.console.print(text, markup=False)
