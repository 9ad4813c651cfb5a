"""A job of several processes: what any scheduler needs to know about it, and a scheduler for this machine."""
