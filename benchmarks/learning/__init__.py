"""Which change of a recipe learns more: a track with rules, on real proteins.

In: proteins, arms. Out: tables. Kept: runs, in the folder that the command names. Begin with `arms`, then `corpus`.
"""
