"""Who is related to whom, and who is held out.

In: a token store, and a table of clusters or MMseqs2. Out: the cluster of each record, the records that validate, and
the records that may not train. Kept: these, as arrays beside the store. Begin with `clusters`, then `split`.
"""
