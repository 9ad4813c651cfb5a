import tensorflow as tf

from pipeline.records import framing

RECORDS = [b"", b"a", b"hello" * 100]


def test_bytes_are_those_of_tensorflow(tmp_path):
    path = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert b"".join(map(framing.frame, RECORDS)) == path.read_bytes()
