"""Code shared by all commands: flags, exit codes, one-line errors, a quiet start."""
