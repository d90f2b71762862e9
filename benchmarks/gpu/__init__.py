"""What a machine with a GPU shows of this project, from one command: `make gpu`.

Reading order: `__main__` watches, `worker` works through the checks that `rows` lists, `results` keeps what they find;
`machine`, `parity`, `step`, `speed`, `engines` and `context` hold the checks, the last two in processes of `ranks`.
"""
