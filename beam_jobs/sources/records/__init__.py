"""TFRecords: converted data sets, those of other writers, and those of TensorFlow Datasets."""
