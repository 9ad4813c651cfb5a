"""Batches for the replicas of a `tf.distribute` strategy."""
