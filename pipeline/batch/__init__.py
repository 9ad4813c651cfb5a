"""From windows to the batches of a `tf.data.Dataset`."""

# Stages of a batch, after each of which `Batches` can stop: each takes what the one before hands on, but for the first
# two, which make the numbers and the weights of an element alone.
NUMBERS, WEIGHTS, GATHER, DECODE, DISTORT = "numbers", "weights", "gather", "decode", "distort"
