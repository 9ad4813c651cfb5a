"""The proof holds of orders as they are; that it fails of faults is shown in test_mutations."""

import dataclasses
import itertools
import sys

import numpy as np
import pytest

from pipeline.audit.bits import Bits
from pipeline.audit.proof import Proof
from pipeline.audit.tensors import tensor_claims
from pipeline.audit.topology import Topology
from pipeline.errors import UsageError
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.datasets import write_dataset

SHAPE = (2, 3, 1)  # 6 bytes


def split_of(folder, counts=(30, 0, 25, 44), **changes):
    write_dataset(folder, counts, SHAPE)
    arguments = {"global_batch_size": 12, "training": True, "streams": 4, "shuffle_bytes": 240, "seed": 3}
    return resolve(Request(folder, "train", **(arguments | changes)))


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("counts", [(99,), (30, 0, 25, 44), (1,) * 40, (5, 80), (12,)])
def test_the_proof_holds_of_every_order(tmp_path, counts, remainder):
    for streams, shuffle_bytes, training in itertools.product((1, 2, 12), (120, 240, 1 << 30), (True, False)):
        source = split_of(
            tmp_path, counts, training=training, streams=streams, shuffle_bytes=shuffle_bytes, remainder=remainder
        )
        proof = Proof(source, 7)
        claims = proof.claims() + proof.topology_claims(Topology(2, 4, 12))
        assert all(claim.holds for claim in claims), claims[-1]
        seen = sum(counts) if remainder == "pad" else sum(counts) // 12 * 12
        assert claims[-1].evidence.startswith(f"{seen} records counted")


def test_an_order_of_other_counts_is_found(tmp_path):
    source = split_of(tmp_path)
    source = dataclasses.replace(source, order=dataclasses.replace(source.order, counts=(30, 24, 45)))
    [claim] = Proof(source, 0).claims()
    assert claim.holds is False
    assert all(fact in claim.evidence for fact in ("shard 1", "24", "25"))


def test_without_tensorflow_the_audit_says_that_tensors_were_not_checked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    [claim] = tensor_claims(split_of(tmp_path).order, 0, Topology(1, 1, 12))
    assert claim.holds is None
    assert "TensorFlow" in claim.evidence


@pytest.mark.parametrize(
    ("workers", "replicas", "message"),
    [(0, 1, "workers=0, replicas=1"), (2, 3, "3 replicas on 2 workers"), (5, 5, "global_batch_size=12 .* 5 replicas")],
)
def test_a_topology_that_cannot_be_is_refused(workers, replicas, message):
    with pytest.raises(UsageError, match=message):
        Topology(workers, replicas, 12)


@pytest.mark.parametrize("seed", range(20))
def test_bits_find_the_first_number_that_comes_again(seed):
    random = np.random.default_rng(seed)
    bits, seen = Bits(100), set()
    while True:
        numbers = random.integers(0, 100, 8)
        again = [i for i in range(8) if numbers[i] in seen or numbers[i] in np.delete(numbers, i)]
        found = bits.add(numbers)
        if again:
            assert found == again[0]
            return
        assert found is None
        seen |= set(numbers.tolist())
        assert bits.count() == len(seen)
        assert bits.first_missing() == min(set(range(100)) - seen)
