"""Every check and figure of this project that needs a GPU, from one command: `make gpu`.

Begin with `__main__`, which watches; `worker` runs the checks that `rows` lists, and `results` keeps what they find.
`machine`, `parity`, `step`, `speed`, `engines` and `context` hold the checks, the last two in processes of `ranks`.
"""
