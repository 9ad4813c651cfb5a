"""A job of several processes: what any scheduler needs to know of it, and a scheduler for this machine."""
