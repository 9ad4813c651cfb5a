"""The flags of the trainer, one group per concern; each group checks its own values."""
