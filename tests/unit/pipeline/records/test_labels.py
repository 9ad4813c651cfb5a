"""Class names in files next to records."""

import pytest

from pipeline.errors import DataError
from pipeline.files.paths import path_of
from pipeline.records.labels import beside
from tests.helpers.raised import at


def names(folder, *files, **options):
    root = path_of(str(folder))
    return beside(root, [root / file for file in files], "label", **options)


def write(folder, **texts):
    for place, text in texts.items():
        path = folder / place.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_they_are_those_of_the_folder_before_those_of_the_files_own(tmp_path):
    assert names(tmp_path, "a/x", "b/y") == ()
    write(tmp_path, a__labels_txt="one\ntwo\n", b__labels_txt="one\ntwo\n")
    assert names(tmp_path, "a/x", "b/y") == ("one", "two")
    write(tmp_path, labels_txt="0:none\n1:three\n")
    assert names(tmp_path, "a/x", "b/y") == ("none", "three")
    assert names(tmp_path, "a/x", offset=-1) == ("three",)
    (tmp_path / "label.labels.txt").write_text("four\n")  # as TensorFlow Datasets names it
    assert names(tmp_path, "a/x", "b/y") == ("four",)


@pytest.mark.parametrize("other", ["two\none\n", None])
def test_folders_that_number_other_classes_are_refused_unless_labels_are_texts(tmp_path, other):
    write(tmp_path, a__labels_txt="one\ntwo\n", **({"b__labels_txt": other} if other else {}))
    with pytest.raises(DataError, check=at(tmp_path, "class names of a and of b differ")):
        names(tmp_path, "a/x", "b/y")
    assert names(tmp_path, "a/x", "b/y", has_text_labels=True) == ()
