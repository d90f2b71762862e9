"""The ground that data, pretraining and fine-tuning stand on, and the trainer.

The ground imports none of them; `trainer` imports batches and order from `data`.

`keyed_random` makes random numbers of keys, `compiled` compiles loops with numba, `onednn` multiplies on a CPU. `files`
writes files that appear whole, `console` prints progress and text, `settings` reads recipes and other files into
checked dataclasses. `processes` knows resources, launchers, signals and errors of a program, `command_line` is what all
commands share.
"""
