"""From windows to the batches of a `tf.data.Dataset`."""
