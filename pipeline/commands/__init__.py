"""What all commands share: flags, exit codes, one-line errors, a quiet start."""
