"""The bytes of a record: its TFRecord frame, and the `tf.train.Example` inside."""
