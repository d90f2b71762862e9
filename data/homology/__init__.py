"""Homology: which records are related, and which are held out.

In: a token store, and a table of clusters or MMseqs2. Out: the cluster of each record, the records that validate, and
the records that must not train. Kept: these, as arrays beside the store. Begin with `clusters`, then `split`.
"""
