import re

import numpy as np
import pytest

from pipeline.audit import __main__ as audit
from pipeline.audit import content
from pipeline.audit.proof import Fault
from pipeline.errors import DataError
from pipeline.index import __main__ as index
from pipeline.order.reading import Topology
from pipeline.records import framing
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.raised import at


class Order:
    """Of a batch of records 5 and 6, the second of them padding."""

    def batch(self, step):
        del step
        return [5, 6], [True, False]


def fed(records, weights):
    element = (np.zeros([2, 1]), np.zeros(2), np.array(weights), np.array(records))
    return list(content._of_element(element, Order(), 7, 0, Topology(1, 2, 2)))


def test_each_row_is_the_record_of_the_order_and_padding_is_padding():
    assert [row.record for row in fed([5, 6], [1.0, 0.0])] == [5, 6]
    for records, weights, facts in (
        ([5, 4], [1.0, 0.0], r"row 1 .*record 4 \(padding\).* 6 \(padding\)"),
        ([6, 5], [1.0, 0.0], r"row 0 .*record 6 \(real\).* 5 \(real\)"),
        ([5, 6], [1.0, 1.0], r"row 1 .*record 6 \(real\).* 6 \(padding\)"),
    ):
        with pytest.raises(Fault, match=f"^step 7, {facts}$"):
            fed(records, weights)


def test_values_are_equal_in_shape_too_and_nan_is_nan():
    row = content.Fed("here", 0, 0, 5, {"box": np.float32([1, np.nan])})
    content._compare(row, "there", {"box": np.float32([1, np.nan])})
    for stored, facts in (
        (np.float32([1, 2]), "box at 1 .*nan.* 2.0"),
        (np.float32([1]), r"box .*\(2,\).*\(1,\)"),
    ):
        with pytest.raises(Fault, match=rf"^there: {facts} \(here\)$"):
            content._compare(row, "there", {"box": stored})


@pytest.mark.parametrize(
    ("kind", "flags", "said"),
    [
        (Kind(extra=True), ["--workers=3"], "24 rows compared, of .*: box, id, image, key, label, scores, tags$"),
        (Kind("png", compression="GZIP"), [], "24 rows compared, of .*: image, key, label$"),
        (Kind("jpeg", varied=True), ["--resize=9x8"], "24 rows compared, of .*: image, key, label; .* resized to 9x8$"),
        # A record has 328 bytes; a square of side 10 takes no more memory.
        (Kind("png", varied=True), ["--augment=random_crop(size=6)", "--epoch=2"], "24 rows .* resized to 10x10$"),
    ],
    ids=["all features", "compressed", "resized", "cropped"],
)
@pytest.mark.quick(1)
def test_what_the_first_and_last_worker_are_fed_is_in_the_shards(tmp_path, capsys, kind, flags, said):
    """Of 36 records, the first and last of three workers get 24; of 24, a single worker gets all."""
    write_dataset(tmp_path, (17, 0, 19) if "--workers=3" in flags else (11, 0, 13), kind=kind)
    audit.main([str(tmp_path), "--global_batch_size=12", "--content", *flags])
    lines = capsys.readouterr().out.splitlines()
    claim = next(n for n, line in enumerate(lines) if line.startswith("holds  the values that are fed are those of"))
    assert re.search(said, lines[claim + 1]), lines[claim + 1]


@pytest.mark.parametrize("flags", [[], ["--shuffle_bytes=2000"]], ids=["in memory", "windows"])
@pytest.mark.quick(1)
def test_a_record_that_is_corrupt_is_named_by_the_input_itself(tmp_path, flags):
    made = write_dataset(tmp_path, (11, 13))
    shard = tmp_path / made.splits["train"].shards[1].file
    data = bytearray(shard.read_bytes())
    data[3 * made.splits["train"].shards[1].stride + 40] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, check=at(shard.name, "CRC", record=3)):
        audit.main([str(tmp_path), "--global_batch_size=12", "--content", *flags])


def test_values_of_another_record_are_found(tmp_path, monkeypatch, capsys):
    write_dataset(tmp_path, (24,))
    stored = content._stored

    def next_one(*arguments):
        for where, number, values in stored(*arguments):
            yield where, number, {**values, "label": (values["label"] + (number == 7)) % 3}

    monkeypatch.setattr(content, "_stored", next_one)
    with pytest.raises(
        DataError,
        match=r"train-00000-of-00001\.tfrecord, record 7, .*: label is fed as 1, and the record has 2 .step \d, row \d",
    ):
        audit.main([str(tmp_path), "--global_batch_size=12", "--content"])
    assert "FAILS  the values that are fed" in capsys.readouterr().out


def test_only_so_many_bytes_of_shards_are_walked_through(tmp_path, monkeypatch, capsys):
    """The shard with most rows is; of the others none that would go beyond the bound."""
    write_dataset(tmp_path, (8, 10, 6))
    monkeypatch.setattr(content, "_MOST_BYTES", 1)
    audit.main([str(tmp_path), "--global_batch_size=12", "--content"])
    out = capsys.readouterr().out
    assert "10 rows compared, of 2.2 KiB of shards: " in out
    assert "; 14 records of other shards left out: at most 1 bytes are walked through\n" in out


def test_records_of_any_kind_are_compared_as_bytes(tmp_path, capsys):
    (tmp_path / "verses.rec").write_bytes(b"".join(framing.frame(b"verse %d" % number) for number in range(12)))
    index.main([str(tmp_path), "--split=train:verses.rec"])
    audit.main([str(tmp_path), "--global_batch_size=4", "--content"])
    assert "12 rows compared, of 278 bytes of shards: record\n" in capsys.readouterr().out
