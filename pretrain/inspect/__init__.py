"""Looking into a run directory from outside, without changing it: a command for each question.

In: a run directory. Out: words, and an exit status that answers. Kept: nothing. Read `attempts` (how its starts ended),
then `verify` (whether its checkpoints are whole, and were trained on what the recipe says).
"""
