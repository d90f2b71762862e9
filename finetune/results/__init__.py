"""What a fine-tuning run found at its end: predictions of the tested part, scores beside baselines, calibration.

In: predictions of every member, labels, the split's audit. Out: `results.Results`, which scores.json holds;
predictions.csv; a table for the console. Torch is not imported.
"""
