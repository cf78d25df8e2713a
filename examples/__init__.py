"""Programs to read and to run: `python examples/train_gpt.py`."""
