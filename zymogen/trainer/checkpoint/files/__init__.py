"""Files of a checkpoint: how they are hashed and written.

In: tensors that ranks hold. Out: files and an index of them. Kept: nothing. Read `blocks` (how files are written, and
the hashes of their parts), then `index` (which file holds which elements).
"""
