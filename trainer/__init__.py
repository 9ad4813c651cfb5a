"""Training on one device or many: `python -m trainer.run`. Importing the package costs nothing."""
