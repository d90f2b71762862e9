"""Bytes of any file, wherever it lies: local, standard input or a URL; decompressed, in bounded pieces.

In: a path or URL. Out: chunks of bytes, and where reading continues. Kept: nothing; a lost connection is opened again.
Begin with `byte_stream`; `remote_file` reads a URL, `compression` decompresses gzip and zstd.
"""
