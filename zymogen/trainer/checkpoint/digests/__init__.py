"""Digests: numbers by which two states are compared without one being sent to where the other is.

In: tensors, or parts of them, wherever ranks hold them. Out: whether what was saved, what was loaded and what other
ranks hold is the same to the last bit. Kept: the step that was compared last. Read `digest` (which no sharding
changes), then `replicas` (ranks that hold the same).
"""
