"""Four real assay tables, from a pretrained model to test scores beside baselines: `python -m benchmarks.assays`."""
