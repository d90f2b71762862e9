"""Metrics: how good predictions are, task by task, with intervals, and which tasks cannot be scored.

In: predictions with what was measured, by record. Out: `scores.TaskScores`, which print, compare and serialise
themselves. Read `scoring` first. NumPy in float64, scikit-learn and scipy; torch is not imported.
"""
