"""Assay tables, labels and batches that tests of fine-tuning make."""
