"""Protein data: files to records to a token store to an order to bins to masked batches.

    FILES                                             ARITHMETIC
    transport ── sources ── store ── homology         order ────────────── batches
      bytes      blocks     arrays   clusters,        which sequence,      residues gathered and
                            on disk  who validates    crop and bin when    masked, laid out as tensors
                                 └──────────── corpus ────────────┘
                                   a recipe's data, opened

`recipe` says what may be asked for, `commands` is `python -m data`. Beside the rooms stands what all of them may
import: `alphabet`, `draw`, `compiled`, `durable`, `disk_error`, `progress_line`. The two wings do not know each other.

What comes at a step is a pure function of the corpora, the identity settings, the seed and a cursor; nothing else has
state. An example: three proteins, bins of 16 tokens, one bin a step and rank, two ranks.

    the file        >p0 MKTAYIAKQR   >p1 GGSGGS   >p2 MKVLAAGIVG
    the store       tokens.bin holds 26 residues, offsets.bin 0 10 16 26: record r is tokens[offsets[r]:offsets[r + 1]]
    order           pass 0 visits the records in the order 2, 0, 1: a keyed permutation of (seed, pass), no list of it
    crops           each becomes a document of its residues with <cls> and <eos>: 12, 12 and 8 tokens
    bins of 16      best fit in that order: [2], then [0], as 12 + 12 > 16; 1 fits into neither 4 slots left, so [1]
    step 0          bins [2] and [0], dealt to ranks 0 and 1 so that both have the same work; 4 slots of each are pads
    step 1          bin [1] and the first bin of pass 1, in another order: steps straddle passes
    masking         residue t of sample s in pass p is masked if a hash of (seed, p, s, t) falls below 0.15
    the cursor      after step 0: pass 0, window 0, bin 2, 0 tokens before the window. A checkpoint holds no more of
                    the data, and any number of ranks goes on from it with bin [1].
"""
