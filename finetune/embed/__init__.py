"""Embeddings: what a trained encoder gives for each protein of a file, as Parquet.

In: an encoder, proteins. Out: a table of vectors in the order of the file. Kept: beside the table, until it is whole,
the parts of it that are finished. Begin with `plan`, then `table`; `finetune.adaptation.vectors` computes.
"""
