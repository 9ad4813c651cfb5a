"""What happens between inner loops: log lines and scalars, evaluation, checkpoints."""
