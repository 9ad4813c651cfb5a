"""TFRecords: a data set of ours, anybody's, and those of TensorFlow Datasets."""
