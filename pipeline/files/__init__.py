"""Files on this machine, in object stores and on HDFS: read at any offset, written whole, locked."""
