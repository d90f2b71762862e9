"""Two models compared on one set: the result, and how a command prints, writes and judges it.

In: differences with their intervals. Out: `ModelComparison`; lines, JSON, an exit status. Kept: the file of ``-o``.

An interval is that of the *difference*: in each resample both models are scored on the same drawn groups, so what makes
a protein hard for both cancels, and one model's own interval says nothing about it.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

from pretrain.evaluate.verdict import Judgement
from zymogen.command_line.command import add_output_option, make_main, require_free, write_output
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import in_columns
from zymogen.settings.json_file import as_json
from zymogen.settings.section import listed

FORMAT = "zymogen.comparison/1"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDifference:
    """The second model compared with the first, under one corruption or on one task."""

    name: str
    """The corruption or the task."""
    metric: str
    values: tuple[float, float]
    """The metric of the first and of the second model."""
    gain: float
    """How much better the second model is, in the unit of the comparison; 0 for a model compared with itself."""
    low: float
    """Lower end of the gain's bootstrap 95 % interval; NaN where there is one group."""
    high: float
    labels: int
    """Labels or targets that both are scored on."""
    groups: int

    @property
    def judgement(self) -> Judgement:
        """Whether the second model is better or worse beyond the interval."""
        if self.high < 0:
            return Judgement.WORSE
        return Judgement.BETTER if self.low > 0 else Judgement.UNDECIDED  # NaN is neither

    @property
    def shown(self) -> str:
        """The gain with its interval."""
        known = f"{_signed(self.low)} to {_signed(self.high)}"
        return f"{_signed(self.gain)} ({'no interval, all are of one group' if math.isnan(self.low) else known})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """Two models on one set."""

    models: tuple[str, str]
    """Where they were found."""
    on: str
    """Data that both were scored on, in words."""
    set: str
    """Hash of these data."""
    unit: str
    """Unit of the gains."""
    differences: tuple[ModelDifference, ...]
    decide: tuple[str, ...]
    """Names of the differences that decide the judgement."""
    notes: tuple[str, ...] = ()
    """Sentences about tasks that could not be compared."""
    format: str = FORMAT

    @property
    def judgement(self) -> Judgement:
        """Worse where any difference that decides is worse, and better where each is better."""
        found = {each.judgement for each in self.differences if each.name in self.decide}
        if Judgement.WORSE in found:
            return Judgement.WORSE
        return Judgement.BETTER if found == {Judgement.BETTER} else Judgement.UNDECIDED

    def line(self) -> str:
        """The judgement as a sentence, with the differences that it follows from."""
        judgement = self.judgement
        decisive = [each for each in self.differences if each.name in self.decide and each.judgement is judgement]
        gains = listed([f"{each.name} {each.shown}" for each in decisive], _MOST_NAMED, "others")
        relation = "cannot be told from" if judgement is Judgement.UNDECIDED else f"is {judgement} than"
        first, second = self.models
        return f"{second} {relation} {first}: gain in {self.unit} (paired 95 % interval): {gains}"

    def lines(self) -> list[str]:
        """The table, and the judgement."""
        head = ("", "metric", "A", "B", f"gain of B, {self.unit} (95 % interval)", "labels", "groups")
        rows = [
            (of.name, of.metric, *(f"{value:.4g}" for value in of.values), of.shown, f"{of.labels:,}", f"{of.groups:,}")
            for of in self.differences
        ]
        said = [f"A: {self.models[0]}", f"B: {self.models[1]}", f"on {self.on}: {self.set}", ""]
        return [*said, *(f"    {line}" for line in in_columns([head, *rows])), *self.notes, "", self.line()]


def make_compare_main(
    module: str,
    about: str,
    add: Callable[[CommandParser], None],
    compare: Callable[[argparse.Namespace], ModelComparison],
) -> Callable[..., int]:
    """The `main` of a command that compares what its options name, prints it, and writes it to the file of ``-o``.

    Its exit status is 1 where the second model is worse, 0 where it is not; that of its class for an error, never 1.
    The arguments are those of `zymogen.command_line.command.make_main`.
    """

    def options(parser: CommandParser) -> None:
        add(parser)
        add_output_option(parser)

    def is_worse(options: argparse.Namespace) -> bool:
        require_free(options.output, overwrites=options.overwrite)
        comparison = compare(options)
        print("\n".join(comparison.lines()), flush=True)
        write_output(options.output, as_json(comparison, judgement=comparison.judgement))
        return comparison.judgement is Judgement.WORSE

    return make_main(module, about, options, is_worse, is_alone=True)


def _signed(gain: float) -> str:
    return "0" if gain == 0 else f"{gain:+.4f}"
