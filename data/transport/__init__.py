"""Bytes of any file, wherever it lies: local, standard input or a URL; decompressed, in bounded pieces.

In: a path or URL. Out: chunks of bytes, and where reading goes on. Kept: nothing; a broken connection is made anew.
Begin with `byte_stream`; `remote_file` is what stands after a URL, `compression` takes gzip and zstd apart.
"""
