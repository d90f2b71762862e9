"""Protein data: files to records to a token store to an order to bins to masked batches.

    FILES                                           ARITHMETIC
    transport ── sources ── store ── homology       order ────────────── batches
      bytes      blocks     arrays   clusters,      which sequence,      residues gathered and
                            on disk  who validates  crop and bin when    masked, laid out as tensors
                                 └────────── corpus ──────────┘
                                   a recipe's data, opened

`settings` are those of a recipe, `commands` is `python -m data`. Files and arithmetic do not import each other. Every
room may import `alphabet` (residues and tokens) and the package `zymogen`, but its trainer.

What a step reads is a pure function of the corpora, the identity settings, the seed and a cursor; nothing else has
state. An example: three proteins, two bins of 24 tokens a step, two ranks, seed 0.

    the file    >p0 MKTAYIAKQR   >p1 GGSGGS   >p2 MKVLAAGIVG
    the store   tokens.bin holds 26 residues and offsets.bin 0 10 16 26: record r is tokens[offsets[r]:offsets[r + 1]]
    the order   pass 0 visits the records 1 2 0, and pass 1 visits 1 0 2: a keyed permutation, of which no list is kept
    the crops   with <cls> and <eos> each record is a document, of 8, 12 and 12 tokens in that order; all are shorter
                than crop_tokens, so none is cut
    the bins    best fit in that order: 1 and 2 fit into 24 tokens, 0 needs a bin of its own. A keyed shuffle puts the
                bin of 0 first
    step 0      takes both bins. They are dealt by their work: rank 0 gets bin 1 (documents 1 and 2), rank 1 gets bin 0
    the masks   a hash of (seed, pass, record, position) decides whether a residue is a target: on rank 0 the V of p2,
                on rank 1 M, T and Q of p0. The model sees <mask> for V, M and T, and D for Q
    the cursor  after step 0 it is (pass 0, window 0, bin 2, 0 tokens before the window); a window is what is packed at
                a time, here the whole pass. It is all that a checkpoint holds of the data, and any number of ranks can
                continue from it. Here pass 0 is used up, so that the next step begins pass 1
"""
