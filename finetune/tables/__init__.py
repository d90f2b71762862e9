"""Tables: what people have measured, read as text, and the protein of each row.

In: CSV, TSV, Parquet, `datasets`, FASTA with labels. Out: `Table`s of text, proteins, errors with file and row.
"""
