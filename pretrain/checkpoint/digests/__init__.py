"""Digests: numbers by which two states are compared without one being sent to where the other is.

In: tensors, or parts of them, wherever ranks hold them. Out: whether what was saved and what was loaded is the same to
the last bit. Kept: nothing. Read `lanes` (a digest that no sharding changes), then `loaded` (what ranks hold after a
load).
"""
