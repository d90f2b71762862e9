"""Any format to blocks of records. A new file format is read here: one module, one line in `resolve`.

In: what `data.sources` names. Out: `block.RecordBlock`s, flat arrays of records, with the position where reading
continues.
Kept: nothing. Begin with `block`, then `fasta` or `tables`; `protein` says what a record must be.
"""
