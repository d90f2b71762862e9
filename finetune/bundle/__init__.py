"""The bundle: a fine-tuned model as a folder that predicts, without the weights that it shares with its base.

What was trained, how tables are read, what each task's numbers mean, what the model was trained on, and a hash of the
base weights. safetensors, JSON and CSV alone: opening a bundle runs nothing that its maker wrote.
"""
