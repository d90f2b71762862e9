"""Fine-tuning as the program does it, without its end: baselines, audit and page take longer than such a run."""

from unittest import mock

from finetune.__main__ import main as whole


def main(arguments: list[str]) -> int:
    """Train as the recipe says; the exit status."""
    with (
        mock.patch("finetune.finalize.finalize", return_value=None),
        mock.patch("finetune.results.text.format_summary", return_value=[]),
    ):
        return whole(arguments)
