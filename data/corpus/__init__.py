"""The corpora of a run, opened: the only room where files (store, homology) and arithmetic (order, batches) meet.

In: the data section of a recipe. Out: `corpora.Corpora`, which gives training and validation bins. Kept: the stores and
what is derived from them, made once per node. Begin with `prepare`; `reader` reads residues by record,
`consumed` says what a run has read of a stream.
"""
