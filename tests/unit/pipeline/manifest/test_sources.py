"""Where a folder ends and a split begins; weights; the text of a flag."""

import os
import pathlib

import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.manifest.sources import Source, own_views, parse_sources, sources_of
from tests.helpers.raised import at


@pytest.mark.parametrize(
    ("text", "folder", "split"),
    [
        ("a", "a", "own"),
        ("a/b.c:train", "a/b.c", "train"),
        ("b:train[:50%]", "b", "train[:50%]"),
        ("b:train[10:-5]+test", "b", "train[10:-5]+test"),
        ("gs://bucket/x", "gs://bucket/x", "own"),
        ("gs://bucket/x:train[:1%]", "gs://bucket/x", "train[:1%]"),
        ("hdfs://host:9000/x", "hdfs://host:9000/x", "own"),
        ("hdfs://host:9000/x:test", "hdfs://host:9000/x", "test"),
        (r"C:\data\x", r"C:\data\x", "own"),
        ("C:/data/x:test", "C:/data/x", "test"),
        ("2026:11/", "2026:11/", "own"),  # a folder with a colon
        (pathlib.Path("a:b"), pathlib.Path("a:b"), "own"),
    ],
)
def test_a_source_is_a_folder_and_maybe_a_split(text, folder, split):
    [source] = sources_of([(text, 2)], "own")
    assert source == Source(folder, split, 2.0)
    assert sources_of((source,), "other") == (source,)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), True, "1", None, [1]])
def test_a_weight_is_a_number_above_0(weight):
    with pytest.raises(UsageError, match="^source 'a': .* weight, "):
        sources_of([("a", weight)], "train")


@pytest.mark.parametrize("given", [[], 3, None, ["a"], [("a",)], [("a", 1, 2)]])
def test_a_list_is_of_pairs(given):
    with pytest.raises(UsageError, match="^data_dir="):
        sources_of(given, "train")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=0.7,b:train[:50%]=0.3", [("a", 0.7), ("b:train[:50%]", 0.3)]),
        (" a=7 , gs://x/y=1e1", [("a", 7.0), ("gs://x/y", 10.0)]),
        ("x/date=2024,y=1", [("x/date", 2024.0), ("y", 1.0)]),
        ("x/date=1/y=2,z=1", [("x/date=1/y", 2.0), ("z", 1.0)]),
        ("x/date=2024", "x/date=2024"),
        ("a,b", "a,b"),
        ("a=1,b=2/", "a=1,b=2/"),
    ],
)
def test_the_text_of_a_flag(text, expected):
    assert parse_sources(text) == expected


def test_each_home_folder_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    assert parse_sources("~/a=1,~/b=2") == [(os.path.join("/home/x", "a"), 1.0), ("/home/x/b", 2.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1,b", "--data_dir=a=1,b: .*'b' .* b="),
        ("a=1,", "--data_dir=a=1,: .*'' .* DIR="),
        ("a=1,b=x", "--data_dir=a=1,b=x: .*'b', 'x'"),
    ],
)
def test_wrong_texts(text, message):
    with pytest.raises(UsageError, match=message):
        parse_sources(text)


def test_a_weight_of_a_single_source_is_noticed(tmp_path):
    with pytest.raises(DataError, match="/a=0.7: .*; .* the weight"):
        manifests.load(tmp_path / "a=0.7")
    with pytest.raises(DataError, match="/a=0.7,b=0.3: .*; .* one data set"):
        manifests.load(tmp_path / "a=0.7,b=0.3")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, check=at("file")):
        manifests.load(tmp_path / "file")
    with pytest.raises(DataError, match="/a=b: .*beam_jobs.convert"):
        manifests.load(tmp_path / "a=b")


def test_a_semicolon_in_a_string_or_at_the_end_begins_no_part():
    sources = sources_of([("it's", 1), ("b", 2)], "train")
    for text in ("t == \"x; b: y\" or t == 'it\\'s; b: y'", "t == 'x;b: y'"):
        found, for_all = own_views(sources, {"where": f"it's: {text}; b: label == 1; "})
        assert [one.options for one in found] == [{"where": text}, {"where": "label == 1"}]
        assert for_all == {"where": None}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bb: score > 0.5", "bb: score > 0.5"),
        ("b:score > 0.5", "b:score > 0.5"),
        ("a: label == 1; bb: score > 0.5", "bb: score > 0.5"),
        ("a: label == 1; score > 0.5", "score > 0.5"),
        ("a: label == 1;; b: score > 0.5", ""),
    ],
)
def test_a_part_that_names_no_source_is_shown_with_those_there_are(text, part):
    sources = sources_of([("a", 1), ("b:test", 2)], "train")
    with pytest.raises(UsageError) as caught:
        own_views(sources, {"where": text})
    assert str(caught.value) == (
        f"where={text}: {part!r} does not begin with a source's name, a colon and a space; the sources are a, b"
    )


def test_a_text_gives_sources_views_of_their_own():
    sources = sources_of([("a", 1), ("b:train[:9]", 2), ("b:test", 1, {"limit": 3})], "train")
    given = {"where": "b:train[:9]: score > 0.5 and site != ';x: '; a: label == 1", "limit": "a: 9", "weigh": "w"}
    found, for_all = own_views(sources, given)
    assert for_all == {"where": None, "limit": None, "weigh": "w"}
    assert [one.options for one in found] == [
        {"where": "label == 1", "limit": "9"},
        {"where": "score > 0.5 and site != ';x: '"},
        {"limit": 3},
    ]
    for text in ("label == 1", "site == 'c: d'", "site != 'x;a: y'", "score > 1; a: label == 1", None, 7):
        assert own_views(sources, {"where": text}) == (sources, {"where": text})
    assert own_views((), {"where": "a: label == 1"}) == ((), {"where": "a: label == 1"})
    for option, text in (("where", "b: label == 1"), ("where", "a: x; a:train: y"), ("limit", "b:test: 9")):
        with pytest.raises(
            UsageError, match=f"^{option}=.*: '.*' does not name one source that has no {option} of its"
        ):
            own_views(sources, {option: text})
