"""Files by their names, local or in an object store or HDFS: what reading and writing both stand on."""
