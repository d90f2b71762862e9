"""Files of a checkpoint: how they are hashed, written and read.

In: tensors that ranks hold; later a checkpoint, and which elements of which tensors go where. Out: files and an index
of them; later the elements, compared with their hashes as they are copied. Kept: nothing. Read `blocks` (how files
are written, and the hashes of their parts), `index` (which file holds which elements), then `reader` (what one
or several ranks read).
"""
