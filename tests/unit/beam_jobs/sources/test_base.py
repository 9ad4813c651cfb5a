import dataclasses
import re

import numpy as np
import pytest

from beam_jobs.sources import base, open_source, packages_needed
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import UsageError


def test_the_nearest_data_set_is_suggested():
    with pytest.raises(UsageError, match="unknown 'cifar-10'; did you mean 'cifar10'"):
        packages_needed("cifar-10")
    assert packages_needed("mnist") == ()
    assert packages_needed("digits") == ("sklearn",)
    assert packages_needed("tfds:mnist") == ("tensorflow_datasets",)


def test_help_names_every_data_set_and_layout():
    text = next(field for field in dataclasses.fields(SourceOptions) if field.name == "dataset").metadata["text"]
    said = set(re.findall(r"[\w:]+", text))
    assert [name for name in base.SOURCES if not said & {name, name.removeprefix("emnist_")}] == []


def test_a_flag_of_another_source_is_refused_with_its_takers():
    with pytest.raises(UsageError, match="--image_column: .*--dataset=mnist.* parquet"):
        open_source(SourceOptions("mnist", "x", image_column="img"))


FILES = base.Files(("a.bin", "b.bin", "c.bin"), (3, 0, 2))


def test_rows_of_files_end_to_end_are_found():
    files, rows = base.locate(FILES.counts, np.arange(5))
    assert files.tolist() == [0, 0, 0, 2, 2]
    assert rows.tolist() == [0, 1, 2, 0, 1]
    assert FILES.where(4) == ("c.bin", 1)
    assert FILES.num_rows == 5


def test_a_hash_is_of_the_file_and_the_row_in_it_alone():
    hashes = FILES.hashes(0, 5)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == 5
    assert FILES.hashes(2, 4).tolist() == hashes[2:4].tolist()
    assert base.Files(("c.bin",), (2,)).hashes(0, 2).tolist() == hashes[3:].tolist()


def test_keys_are_whole_whatever_the_name_and_padded_alike_or_not():
    files = base.Files(("é", "ab"), (12, 3))
    assert files.keys(np.array([14, 11, 0])).tolist() == [b"ab#02", "é#11".encode(), "é#00".encode()]
    assert files.keys(np.array([14, 11]), equal_digits=False).tolist() == [b"ab#2", "é#11".encode()]
