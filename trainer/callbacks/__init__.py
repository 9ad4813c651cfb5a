"""Everything a run does besides its steps: printing, writing, measuring and reporting, each as a `Callback`."""
