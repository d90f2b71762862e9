"""Protein data: bytes to records to token store to order to bins to masked batches.

    FASTA(.gz) ── fasta ── store ──┬── split ── order ── plan ── masking ── collate ── loader
                 records   (mmap)  │           (pass,   bins    inputs,    Batch      Step
                                   │            seed)   of T    labels
                                clusters

Read in this order: `alphabet`, `draw` (every random number is a hash of what it is for), `store`, `order`, `plan`,
`masking`, `collate`, `loader`. What comes at a step is a pure function of the corpus, the identity settings, the seed
and a `plan.Cursor`; nothing else has state.
"""
