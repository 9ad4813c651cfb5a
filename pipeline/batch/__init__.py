"""From windows to the batches of a `tf.data.Dataset`."""

# Stages of a batch, after each of which `Batches` can stop. Each works on the result of the previous one, except for
# the first two, which only make an element's numbers and its weights.
NUMBERS, WEIGHTS, GATHER, DECODE, AUGMENT = "numbers", "weights", "gather", "decode", "augment"
