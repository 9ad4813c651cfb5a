"""A job of several processes: all that any scheduler needs to know about it, and a scheduler for this machine."""
