"""What checkpoints cost a run.

`python -m benchmarks.checkpoint`; `blocked` is a run whose storage answers nothing for a minute.
"""
