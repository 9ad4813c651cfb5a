"""`pipeline.InputMeter`: how long any loop waits for its input, and how much it gets."""
