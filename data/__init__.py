"""Protein data: bytes to records to token store to order to bins to masked batches.

    fasta, formats, tables ── store ──┬── clusters, split ── sampler ── plan ── filling ── collate ── loader
          blocks             (mmap)   │                     (pass,     bins    inputs,    Batch      Step
                                   stream                    seed)    of T     targets

Read in this order: `alphabet`, `draw` (every random number is a hash of what it is for), `block`, `store`, `order`,
`sampler`, `plan`, `masking`, `collate`, `loader`. What comes at a step is a pure function of the corpora, the identity
settings, the seed and a `plan.Cursor`; nothing else has state.
"""
