"""Files by their names: on this machine, or in an object store or HDFS; read at any offset, written as a whole."""
