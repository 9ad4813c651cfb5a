import dataclasses
import json

import pytest

from pipeline.errors import DataError
from pipeline.order import key_log
from pipeline.order.key_log import Entry, Header, KeyLogWriter, SourceLogs
from pipeline.order.order import MixtureSpec, OrderSpec
from tests.helpers.raised import at

SPEC = OrderSpec("0" * 64, "train", 7, 8, 2, 400, "pad", True)


def header(worker=0, workers=2, replicas=4):
    return Header.of(SPEC, worker, workers, replicas)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def entries(path):
    return [entry for _, _, entry in key_log.read(path) if entry is not None]


def test_the_lines_are_what_the_format_says(tmp_path):
    path = tmp_path / "logs" / "worker-00000.jsonl"
    with KeyLogWriter(path, header(worker=1)) as log:
        log.append(3, 2, [b"a#0", "a#1"], [1.0, 0.0])
    head, step = lines(path)
    assert (head["format"], head["worker"], head["workers"], head["replicas"]) == (1, 1, 2, 4)
    assert head["manifest_digest"] == head["spec"]["manifest_digest"] == "0" * 64
    assert head["spec"]["global_batch_size"] == 8
    assert step == {"step": 3, "replica": 2, "keys": ["a#0", "a#1"], "weights": [1.0, 0.0]}


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "log.jsonl"
    with KeyLogWriter(path, header()) as log:
        for step in range(3):
            for replica in range(2):
                log.append(step, replica, [f"k{step}", f"r{replica}"], [1, 1.25])
    found = list(key_log.read(path))
    assert found[0] == (f"{path}, line 1", header(), None)
    assert [entry for _, _, entry in found[1:]] == [
        Entry(step, replica, (f"k{step}", f"r{replica}"), (1.0, 1.25)) for step in range(3) for replica in range(2)
    ]
    assert found[3][:2] == (f"{path}, line 4", header())


def test_keys_that_are_no_text_are_told_apart(tmp_path):
    path, keys = tmp_path / "log.jsonl", [b"\xff", b"\\xff", "\u00fc\u4e2d".encode(), b'"\n', b"", b"\xfe"]
    with KeyLogWriter(path, header()) as log:
        log.append(0, 0, keys, [1.0] * len(keys))
    (entry,) = entries(path)
    assert entry.keys == tuple(key_log.key_text(key) for key in keys)
    assert len(set(entry.keys)) == len(keys)
    assert path.read_bytes().count(b"\n") == 2


def test_flushed_steps_are_in_the_file_while_the_writer_lives(tmp_path):
    log = KeyLogWriter(tmp_path / "log.jsonl", header())
    log.append(0, 0, ["a"], [1.0])
    log.flush()
    assert [entry.keys for entry in entries(tmp_path / "log.jsonl")] == [("a",)]
    log.close()


def test_a_cut_at_any_byte_loses_only_the_cut_line_and_the_next_writer_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    with KeyLogWriter(path, header()) as log:
        for step in range(4):
            log.append(step, 0, [f"key {step}"], [1.0])
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        complete = max(0, whole[:size].count(b"\n") - 1)
        assert [entry.step for entry in entries(path)] == list(range(complete))
        with KeyLogWriter(path, header()) as log:
            log.append(9, 1, ["again"], [1.0])
        assert [entry.step for entry in entries(path)] == [*range(complete), 9]
        assert all(line.endswith(b"}") for line in path.read_bytes().splitlines())


def test_a_torn_line_longer_than_a_block_is_removed(tmp_path):
    path = tmp_path / "log.jsonl"
    with KeyLogWriter(path, header()) as log:
        log.append(0, 0, ["a"], [1.0])
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    KeyLogWriter(path, header()).close()
    assert len(list(key_log.read(path))) == 3


def test_a_resumed_run_may_have_another_topology(tmp_path):
    path = tmp_path / "log.jsonl"
    for workers, replicas in ((2, 4), (1, 2)):
        with KeyLogWriter(path, header(0, workers, replicas)) as log:
            log.append(0, 0, ["a"], [1.0])
    assert [header.replicas for _, header, entry in key_log.read(path) if entry] == [4, 2]


GOOD = {"step": 0, "replica": 0, "keys": ["a"], "weights": [1.0]}


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("{", "JSON"),
        ("[]", "dict"),
        (json.dumps(GOOD | {"more": 1}), "'more'"),
        (json.dumps(GOOD | {"replica": 4}), "replica 4 of 4"),
        (json.dumps(GOOD | {"step": -1}), "step -1"),
        (json.dumps(GOOD | {"step": 10**30}), f"step {10**30}"),
        (json.dumps(GOOD | {"step": True}), "step is True"),
        (json.dumps(GOOD | {"keys": [1]}), "keys[0] is 1"),
        (json.dumps(GOOD | {"weights": []}), "weights"),
        (json.dumps(GOOD | {"weights": [float("nan")]}), "weights"),
        (json.dumps({"format": 2}), "format 2"),
        (json.dumps({"format": 1}), "'manifest_digest'"),
        (json.dumps(dataclasses.asdict(header()) | {"start": -1}), "start -1"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path, line, fact):
    path = tmp_path / "log.jsonl"
    KeyLogWriter(path, header()).close()
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, check=at(path, fact, part="line 2")):
        list(key_log.read(path))


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"worker": 2}, "worker 2 of 2"),
        ({"replicas": 3}, "3 replicas"),
        ({"workers": "2"}, "workers is '2'"),
        ({"spec": {"seed": "7"}}, "'global_batch_size'"),
        ({"spec": json.loads(SPEC.to_json()) | {"seed": "7"}}, "spec.seed is '7'"),
    ],
)
def test_a_header_that_cannot_be_is_named(tmp_path, change, fact):
    path = tmp_path / "log.jsonl"
    KeyLogWriter(path, header()).close()
    (head,) = lines(path)
    path.write_text(json.dumps(head | change) + "\n")
    with pytest.raises(DataError, check=at(path, fact, part="line 1")):
        list(key_log.read(path))


def test_a_log_begins_with_a_header(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps(GOOD) + "\n")
    with pytest.raises(DataError, check=at("log.jsonl", "header", part="line 1")):
        list(key_log.read(tmp_path / "log.jsonl"))


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, check=at("file/log.jsonl")):
        KeyLogWriter(tmp_path / "file" / "log.jsonl", header())


def test_each_source_of_a_mixture_has_its_own_log(tmp_path):
    """Of 12 rows of a step 8 are of the first source; a replica's half has them in blocks of 2 and 1."""
    parts = tuple(dataclasses.replace(SPEC, global_batch_size=rows) for rows in (8, 4))
    with SourceLogs(str(tmp_path), MixtureSpec(parts), 1, 2, 2, 0) as log:
        log.append(5, 1, list("abcdef"), [1, 1, 1, 1, 0, 0])
        log.flush()
        found = [entries(tmp_path / f"source-{number}" / "worker-00001.jsonl") for number in (0, 1)]
    assert found == [[Entry(5, 1, tuple("abde"), (1, 1, 1, 0))], [Entry(5, 1, tuple("cf"), (1, 0))]]
    (head, _) = lines(tmp_path / "source-1" / "worker-00001.jsonl")
    assert (head["worker"], head["workers"], head["replicas"], head["spec"]["global_batch_size"]) == (1, 2, 2, 4)


def test_a_single_source_has_its_log_in_the_folder_itself(tmp_path):
    path = tmp_path / "worker-00000.jsonl"
    with SourceLogs(str(tmp_path), SPEC, 0, 1, 2, 5) as log:
        log.append(5, 0, ["a", "b"], [1, 1])
    assert entries(path) == [Entry(5, 0, ("a", "b"), (1, 1))]
    assert lines(path)[0]["start"] == 5
    with SourceLogs(str(tmp_path), SPEC, 0, 1, 2, 3):  # a job that was stopped at once
        pass
    KeyLogWriter(path, header(workers=1)).close()  # as of earlier releases, whose first entry tells
    assert [part.start for part in key_log.parts(path)] == [5, 3, None]
    with KeyLogWriter(path, header(workers=1)) as log:
        log.append(7, 0, ["a", "b"], [1, 1])
    assert key_log.parts(path)[-1].start == 7
