"""Other schedulers: a module each, whose `render(job)` returns what is to be given to the scheduler, as text."""
