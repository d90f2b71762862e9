"""What `python -m data COMMAND` does: a module for each command, which `data.__main__` calls.

In: the command's arguments. Out: text on standard output, and an exit status. Kept: stores, and the files that options
name. Begin with `arguments`, which lists all commands; `stats` is one.
"""
