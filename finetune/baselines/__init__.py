"""Baselines: what any model must beat, fitted on the same training labels and scored by the same metrics.

In: sequences or features, labels, the records of each part. Out: `baseline.TaskBaseline`s with predictions. NumPy,
scipy, scikit-learn and, where it is installed, MMseqs2; torch is not imported.
"""
