"""Fine-tuning against transformers' `Trainer` with `EsmForSequenceClassification`: `python -m benchmarks.finetune`."""
