"""From windows to the batches of a `tf.data.Dataset`."""

# The stages of a batch. `Batches` can stop after each of them. Each works on the result of the one before, except for
# the first two, which only make an element's numbers and its weights.
NUMBERS, WEIGHTS, GATHER, DECODE, AUGMENT = "numbers", "weights", "gather", "decode", "augment"
