"""The numbers of a line of progress, each a function of a line of metrics: ours by their names, and the user's.

In: the names of `run.console`, and a line as metrics.jsonl has it (docs/runs.md). Out: text. Kept: nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zymogen.console.format import format_number
from zymogen.settings import extension

Line = Mapping[str, Any]
ConsoleNumber = Callable[[Line], str | None]
"""Returns the text of a number; None: nothing is shown."""


def _loss(line: Line) -> str:
    loss = line["loss"]  # None of a step without a target
    return "loss -" if loss is None else f"loss {loss:.3f}"


def _perplexity(line: Line) -> str | None:
    of_terms = {name: value for name, value in line.items() if name.partition("/")[0] == "perplexity"}
    texts = (f"{name.partition('/')[2]} perplexity {format_number(value)}" for name, value in of_terms.items())
    return " | ".join(text.strip() for text in texts) or None


def _tokens_per_s(line: Line) -> str | None:
    if "flops_per_s" not in line:  # where tokens cost none, their number is no speed of the model
        return None
    per_s = line["tokens_per_s"]
    return f"{per_s / 1e6:.2f}M tokens/s" if per_s >= 1e6 else f"{per_s / 1e3:.1f}k tokens/s"


def _mfu(line: Line) -> str | None:
    return f"MFU {100 * line['mfu']:.0f} %" if "mfu" in line else None


OWN: dict[str, ConsoleNumber] = {
    "loss": _loss,
    "perplexity": _perplexity,
    "tokens_per_s": _tokens_per_s,
    "mfu": _mfu,
    "learning_rate": lambda line: f"learning rate {line['learning_rate']:.2e}",
    "grad_norm": lambda line: f"gradient norm {line['grad_norm']:.3g}",
    "memory": lambda line: f"{line['memory_bytes'] / 1e9:.2f} GB",
    "loader_wait": lambda line: f"waits for data {line['loader_wait']:.0%}",
}
"""Ours by their names in `run.console`."""
DEFAULT = ("loss", "perplexity", "tokens_per_s", "mfu")


def console_numbers(names: Sequence[str]) -> dict[str, ConsoleNumber]:
    """Return the functions that `run.console` names.

    Raises:
        ValueError: one of the user's cannot be imported, or is neither a function nor a class that is called like one.
    """
    return {name: extension.load_function("run.console", name, OWN) for name in names}


def format_numbers(numbers: Mapping[str, ConsoleNumber], line: Line) -> list[str]:
    """Return the texts of a line's numbers. One of the user's that fails costs only its text."""
    texts = []
    for name, number in numbers.items():
        try:
            texts.append(number(line))
        except Exception as error:  # of the user's: anything
            if name in OWN:
                raise
            texts.append(f"{name}: {type(error).__name__}: {error}")
    return [text for text in texts if text]
