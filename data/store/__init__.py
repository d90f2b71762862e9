"""The token store: blocks of records to arrays on disk, which survive an interruption at any point.

In: sources. Out: a folder of arrays, read through memory maps. Kept: that folder, its journal while it is built, and
what is derived from it. Begin with `token_store`, then `build`; `growing` reads a store while it is written.
"""
