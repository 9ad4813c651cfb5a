"""Conversion of data sets into sharded TFRecords and a manifest, with Apache Beam."""

# Of stepfeed.

from stepfeed import shadowed

shadowed.check_for("beam_jobs", "pipeline")
