"""Messages of a push without tokens: what `pretrain.run.redaction` does, under the name that this room uses.

In: a message. Out: the same message without what must not be read by others. Kept: nothing.
"""

from pretrain.run.redaction import HIDDEN, redacted

__all__ = ["HIDDEN", "redacted"]
