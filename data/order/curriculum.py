"""The curriculum: the value of a setting at a point of training, which depends only on the tokens seen so far.

In: stages and a count of tokens. Out: the value of the stage. Kept: nothing; the count of tokens is the whole state.
"""

from collections.abc import Sequence


def stage_value(stages: Sequence[tuple[int, int]], final: int, tokens_seen: int) -> int:
    """The value of the first stage that has not ended at `tokens_seen`; `final` once all have.

    Args:
        stages: (tokens at which the stage ends, value), by rising end.
        final: value after the last stage.
        tokens_seen: tokens of all earlier bins, pad tokens not counted.
    """
    return next((value for end, value in stages if tokens_seen < end), final)


def stage_end(stages: Sequence[tuple[int, int]], tokens_seen: int) -> int | None:
    """The tokens at which the stage of `stage_value` ends; None for the last value, which holds without end."""
    return next((end for end, _ in stages if tokens_seen < end), None)
