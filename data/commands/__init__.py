"""What `python -m data COMMAND` does: a module for each command, which `data.__main__` calls.

In: the command's arguments. Out: text on standard output, and an exit status. Kept: stores, and files that are asked
for. Begin with `arguments`, which lists all commands.
"""
