"""The bytes of a record: its TFRecord frame, its GZIP member, and the `tf.train.Example` inside."""
