"""What a run does beside its steps: what it prints, writes, measures and reports, each as a `Callback`."""
