"""Conversion of data sets into sharded TFRecords and a manifest, with Apache Beam."""
