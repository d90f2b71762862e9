"""Commands: `parser` reads the words, `command` reports errors and gives the exit status."""
