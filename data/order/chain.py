"""The sample chain: one hash that proves which bins, in which order, trained a model.

In: the digests of the bins that reached the forward pass, step by step. Out: a hex string, kept in each checkpoint.
"""

import hashlib
from collections.abc import Sequence

GENESIS = "0" * 64
"""The chain before the first step."""


def extend(chain: str, digests: Sequence[int]) -> str:
    """The chain after one more step.

    Args:
        chain: the chain before the step, 64 hex digits.
        digests: the 64-bit digest of each bin of the step (`Batch.digests`), in global bin order.
    """
    content = hashlib.blake2b(bytes.fromhex(chain), digest_size=32)
    for digest in digests:
        content.update((digest & (1 << 64) - 1).to_bytes(8, "little"))
    return content.hexdigest()
