"""The page of a fine-tuning run: scores beside baselines, a picture of every task, the audit, how it learned.

In: `Results`, predictions, a `RunReader`. Out: report.html, drawn by `pretrain.report.page`. Kept: that file.
"""
