"""Which part of a long sequence a model sees: the optimal window around what is scored, as ProteinGym defines it.

In: tokens, begin and end counted. Out: windows. Kept: nothing.
"""

WINDOW_TOKENS = 1024
"""Tokens of a window: 1,022 residues where begin and end token are among them."""


def common_window(first: int, last: int, tokens: int, window_tokens: int = WINDOW_TOKENS) -> tuple[int, int] | None:
    """The window around the middle of the tokens from `first` to `last`, unless the sequence ends nearer.

    For one token it is ProteinGym's `get_optimal_window` over tokens, as its program for ESM calls it: the begin token
    counts, and a window that does not reach an end of the sequence has no begin or end token.

    Args:
        first: of the tokens that are scored; residue i from 0 is token i + 1.
        last: of them.
        tokens: of the sequence.
        window_tokens: of the window, even.

    Returns:
        The first token, and the one after the last; None if those that are scored do not fit into one window.
    """
    if tokens <= window_tokens:
        return 0, tokens
    if last - first >= window_tokens:
        return None
    start = min(max((first + last + 1) // 2 - window_tokens // 2, 0), tokens - window_tokens)
    return start, start + window_tokens
