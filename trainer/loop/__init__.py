"""From one step to the last: inner loops inside TensorFlow, and the outer loop around them."""
