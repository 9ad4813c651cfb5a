"""Other schedulers: a module each, whose `render(job)` returns the text to submit to the scheduler."""
