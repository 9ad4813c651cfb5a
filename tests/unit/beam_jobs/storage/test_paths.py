import pickle

import pytest

from beam_jobs.storage.paths import RemotePath, path_of, text_of


def test_a_url_is_shown_without_its_options_and_its_user():
    place = RemotePath("s3://key:secret@bucket/folder/?endpoint_override=localhost:9000")
    assert str(place) == "s3://bucket/folder"
    assert "secret" not in repr(place)
    assert place.url == "s3://key:secret@bucket/folder?endpoint_override=localhost:9000"


def test_parts_of_a_url():
    place = RemotePath("gs://bucket/a/b.tar.gz?x=1")
    assert (place.name, place.stem, place.suffix) == ("b.tar.gz", "b.tar", ".gz")
    assert place.parent == RemotePath("gs://bucket/a?x=1")
    assert place.parent / "c" == RemotePath("gs://bucket/a/c?x=1")


def test_a_name_with_a_question_mark_begins_no_options():
    place = RemotePath("s3://bucket/a?region=x") / "what?.parquet"
    assert str(place) == "s3://bucket/a/what?.parquet"
    assert place.parent == RemotePath("s3://bucket/a?region=x")


@pytest.mark.parametrize("text", ["/data/a", "s3://bucket/a?region=x"])
def test_a_path_is_its_text(text):
    assert text_of(path_of(text)) == text
    assert pickle.loads(pickle.dumps(path_of(text))) == path_of(text)
