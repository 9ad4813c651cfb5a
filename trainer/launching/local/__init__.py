"""A job on this machine: processes on loopback, watched, restarted, and ended with the launcher."""
