"""The command that embeds, in parts so small that a few proteins have many: to be run on several processes."""

from unittest import mock

from finetune.embed import __main__ as command
from finetune.embed import plan


def main(arguments: list[str]) -> int:
    with mock.patch.object(plan, "PART_TOKENS", 1_000):
        return command.main(arguments)
