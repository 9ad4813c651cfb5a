"""The page of small data sets with names that would break a page made carelessly."""

import base64
import dataclasses
import gzip
import html.parser
import io
import re
import subprocess

import numpy as np
import PIL.Image
import pytest

from beam_jobs.examples.images import BadImageError
from beam_jobs.examples.statistics import entropy, label_histogram
from beam_jobs.report.card import html as card_html
from beam_jobs.report.card import page as card
from beam_jobs.report.card import pictures as card_pictures
from beam_jobs.report.card import samples as card_samples
from pipeline.errors import DataError
from pipeline.manifest import Feature, Manifest, ShardInfo, SourceFile, SplitInfo, naming
from pipeline.records import example_proto, framing

VOID = {"img", "meta"}
HOSTILE = ['<script>alert("1")</script>', "</figure></body>'\"", "a\u202eb\0c\x1b[2J", "&amp; &lt;b&gt;", "\ud800"]


class Page(html.parser.HTMLParser):
    """Reads a page: every tag with its attributes, and the text; tags must balance."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        raise AssertionError(f"<{tag}/>")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def file_of(kind, height=20, width=30, mode="RGB", seed=0, **options):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).convert("RGB").convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def write_data(folder, rows, shape=(8, 8, 1), encoding="raw", classes=("a", "b"), compression="", split="train"):
    """Writes a data set of shards, each a list of (image, label, key), and returns its manifest."""
    folder.mkdir(exist_ok=True)
    shards = []
    for index, part in enumerate(rows):
        names = ("image", "label", "key")
        data = b"".join(framing.frame(example_proto.encode(dict(zip(names, row, strict=True)))) for row in part)
        data = gzip.compress(data) if compression else data
        file = naming.shard_name(split, index, len(rows), compression)
        (folder / file).write_bytes(data)
        histogram = label_histogram(np.array([row[1] for row in part], np.int64), len(classes))
        shards.append(ShardInfo(file, len(part), len(data), "0123abcd", None, None, entropy(histogram)))
    labels = np.array([row[1] for part in rows for row in part])
    features = {"image": Feature("uint8", shape, encoding), "label": Feature("int64"), "key": Feature("string")}
    made = Manifest(
        dataset="made",
        class_names=tuple(classes),
        features=features,
        splits={split: SplitInfo(tuple(shards), label_histogram(labels, len(classes)), {"8x8": len(labels)})},
        image_mean=(1.0,) * (shape[2] or 3),
        image_std=(2.0,) * (shape[2] or 3),
        source=(SourceFile("source.bin", 1234567, "ab" * 32),),
        options={"seed": 0},
        compression=compression,
    )
    (folder / naming.MANIFEST).write_bytes(made.to_bytes())
    return made


def raw_rows(count, classes=2, size=64, first=0):
    draw = np.random.default_rng(first)
    return [(draw.bytes(size), (first + i) % classes, f"k{first + i}".encode()) for i in range(count)]


def page_of(folder, made, command="python -m x"):
    return Page(card.make_card(folder, made, command))


def words(page):
    return " ".join(" ".join(page.text).split())


def test_it_shows_what_the_manifest_says(tmp_path):
    made = write_data(tmp_path, [raw_rows(30), raw_rows(20)])
    page = page_of(tmp_path, made)
    text = words(page)
    for expected in (
        "made examples 50 classes 2 images 8 \u00d7 8 \u00d7 1 raw shards 2 on disk",
        "train-00001-of-00002.tfrecord 20",
        "0123abcd 1.000",
        "source.bin 1,234,567 " + "ab" * 32,
        "Pixels of train, 0 to 255, by channel: mean 1.00; standard deviation 2.00.",
        "--seed 0",
        "python -m x",
        made.digest,
    ):
        assert expected in text
    assert page.attributes("html") == [{"lang": "en"}]
    assert "Warning" not in text


def test_nothing_in_it_is_fetched_or_run(tmp_path):
    made = write_data(tmp_path, [raw_rows(30)])
    made = dataclasses.replace(made, source=(SourceFile("https://example.org/a.zip", 1, "00" * 32),))
    text = card.make_card(tmp_path, made, "python -m x --source=https://example.org/a.zip")
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form", "a", "image", "use"}
        assert not any(name.startswith("on") or name in {"href", "srcset", "xlink:href"} for name in attributes)
        assert attributes.get("src", "data:image/").startswith("data:image/")
    assert "url(" not in text
    assert "@import" not in text
    policy = [meta["content"] for meta in page.attributes("meta") if "http-equiv" in meta]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_names_of_any_kind_are_text(tmp_path):
    rows = [(bytes(64), i, name.encode(errors="surrogatepass")) for i, name in enumerate(HOSTILE)]
    made = write_data(tmp_path, [rows], classes=HOSTILE)
    harmless = page_of(tmp_path, write_data(tmp_path, [rows], classes="vwxyz"))
    made = dataclasses.replace(
        made,
        dataset=HOSTILE[0],
        source=tuple(SourceFile(name, 1, name) for name in HOSTILE),
        options=dict.fromkeys(HOSTILE, HOSTILE[1]) | {"seed": HOSTILE},
        features=made.features | {name: Feature(name, (), None) for name in HOSTILE},
    )
    text = card.make_card(tmp_path, made, card.command_line("beam_jobs.convert", HOSTILE))
    text.encode()
    page = Page(text)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in harmless.tags}
    assert [image["alt"] for image in page.attributes("img")] == [
        *(HOSTILE[0], HOSTILE[1], "a\\u202eb\\x00c\\x1b[2J", HOSTILE[3], "\\ud800")
    ]
    assert page.text.count(HOSTILE[0]) > 4
    assert not set("\0\x1b\u202e\ud800") & set(text)


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_samples_are_the_stored_images_of_each_class(tmp_path, compression):
    rows = raw_rows(40, classes=3)
    made = write_data(tmp_path, [rows[:20], rows[20:]], classes="abc", compression=compression)
    page = page_of(tmp_path, made)
    images = page.attributes("img")
    assert [image["alt"] for image in images] == ["a"] * 5 + ["b"] * 5 + ["c"] * 5
    for place, image in enumerate(images):
        pixels, _, key = [row for row in rows if "abc"[row[1]] == image["alt"]][place % 5]
        decoded = PIL.Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))
        assert decoded.tobytes() == pixels
        assert image["title"] == f"{key.decode()}, 8 \u00d7 8"
        assert (image["width"], image["height"], image["class"]) == ("8", "8", "tiny")
    assert [div["style"] for div in page.attributes("div") if "style" in div] == ["--cell:96px"]


def test_the_same_data_set_gives_the_same_page(tmp_path):
    made = write_data(tmp_path, [raw_rows(40)])
    assert card.make_card(tmp_path, made, "x") == card.make_card(tmp_path, made, "x")


def test_samples_come_from_shards_all_over_a_split_that_is_sorted_by_class(tmp_path):
    classes = [str(i) for i in range(40)]
    made = write_data(tmp_path, [[(bytes(64), label, b"k")] * 9 for label in range(40)], classes=classes)
    found = card_samples.take(tmp_path, made)
    assert found.shards == 16
    assert list(found.by_label) == [0, 2, 5, 7, 10, 13, 15, 18, 20, 23, 26, 28, 31, 33, 36, 39]
    assert "each of 16 of the 40 classes of train" in words(page_of(tmp_path, made))
    assert "--passes=2" in words(page_of(tmp_path, made))


def test_of_many_classes_twenty_are_shown_and_of_rare_ones_what_there_is(tmp_path):
    classes = [str(i) for i in range(100)]
    rows = [(bytes(64), i % 100, b"k") for i in range(500)]
    found = card_samples.take(tmp_path, write_data(tmp_path, [rows], classes=classes))
    assert list(found.by_label)[::19] == [0, 99]
    assert len(found.by_label) == 20
    rows = [(bytes(64), 0, b"k")] * 300 + [(bytes(64), 2, b"k")] * 2
    found = card_samples.take(tmp_path, write_data(tmp_path, [rows], classes="abc"))
    assert {label: len(samples) for label, samples in found.by_label.items()} == {0: 5, 2: 2}


def test_reading_is_bounded(tmp_path):
    made = write_data(tmp_path, [[(bytes(64), 0, b"k")] * 5000 + [(bytes(64), 1, b"k")]])
    assert list(card_samples.take(tmp_path, made).by_label) == [0]  # the other is beyond the records that are read
    large = [[(bytes(5 << 20), s % 2, b"k"), (bytes(5 << 20), 1 - s % 2, b"k")] for s in range(16)]
    found = card_samples.take(tmp_path, write_data(tmp_path, large, shape=(1 << 20, 5, 1)))
    assert [len(samples) for samples in found.by_label.values()] == [5, 5]


def test_without_a_training_split_the_largest_is_shown(tmp_path):
    made = write_data(tmp_path, [raw_rows(4)], split="all")
    assert card_samples.take(tmp_path, made).split == "all"
    assert "of each class of all, as stored" in words(page_of(tmp_path, made))


@pytest.mark.parametrize(
    ("shape", "cell"),
    [((28, 28, 1), "--cell:84px"), ((32, 20, 1), "--cell:96px"), ((60, 60, 1), None), ((None, 8, 1), None)],
)
def test_tiny_images_of_one_size_are_scaled_by_whole_numbers(tmp_path, shape, cell):
    made = write_data(tmp_path, [[(file_of("PNG", 8, 8), 0, b"k")]], shape, "png")
    assert [div.get("style") for div in page_of(tmp_path, made).attributes("div") if div.get("class") == "classes"] == [
        cell
    ]


def test_files_are_shown_as_they_are_where_that_is_small_and_safe():
    for kind in ("PNG", "JPEG"):
        data = file_of(kind)
        made = card_pictures.of_file(data, 1 << 16)
        assert base64.b64decode(made.uri.partition(",")[2]) == data
        assert made.uri.startswith(f"data:image/{kind.lower()};base64,")
        assert (made.height, made.width) == (20, 30)


@pytest.mark.parametrize(
    "data",
    [
        file_of("PNG", 300, 400),
        file_of("JPEG", 600, 800),
        file_of("PNG", mode="RGBA"),
        file_of("PNG", mode="P", transparency=3),
        file_of("JPEG", mode="CMYK"),
        file_of("PNG", 1, 600),
    ],
    ids=["large png", "large jpeg", "alpha", "transparent", "cmyk", "long"],
)
def test_other_files_are_shown_as_thumbnails(data):
    made = card_pictures.of_file(data, 1 << 16)
    thumbnail = PIL.Image.open(io.BytesIO(base64.b64decode(made.uri.partition(",")[2])))
    assert thumbnail.format == "JPEG"
    assert max(thumbnail.size) <= 160
    assert len(made.uri) < 40_000


@pytest.mark.parametrize("shape", [(300, 400, 3), (40, 40, 1), (9, 9, 2), (9, 9, 4)])
def test_pixels_are_shown_whatever_their_shape(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    made = card_pictures.of_pixels(pixels.tobytes(), shape, 10_000)
    shown = PIL.Image.open(io.BytesIO(base64.b64decode(made.uri.partition(",")[2])))
    assert (made.height, made.width) == shape[:2]
    if shape[0] < 100:
        expected = pixels[..., :3] if shape[2] >= 3 else pixels[..., 0]
        assert shown.format == "PNG"
        assert np.array_equal(np.asarray(shown), expected)
    with pytest.raises(BadImageError):
        card_pictures.of_pixels(pixels.tobytes()[1:], shape, 10_000)


def test_images_that_cannot_be_decoded_are_counted(tmp_path):
    good, cut = file_of("PNG"), file_of("PNG")[:-400]
    rows = [(good, 0, b"k"), (cut, 0, b"k"), (b"none", 1, b"k"), (good, 1, b"k")]
    page = page_of(tmp_path, write_data(tmp_path, [rows], (20, 30, 3), "png"))
    assert len(page.attributes("img")) == 2
    assert "2 of those looked at cannot be decoded" in words(page)


def test_large_images_do_not_make_a_large_page(tmp_path):
    classes = [str(i) for i in range(20)]
    rows = [(file_of("JPEG", 300, 300, seed=i, quality=95), i % 20, b"k") for i in range(100)]
    made = write_data(tmp_path, [rows], (None, None, 3), "jpeg", classes)
    text = card.make_card(tmp_path, made, "x")
    assert len(Page(text).attributes("img")) == 100
    assert len(text) < 2_000_000


def test_many_classes_shards_and_sizes_are_abridged(tmp_path):
    classes = [f"class {i}" for i in range(1000)]
    made = write_data(tmp_path, [raw_rows(300, 1000, first=100 * i) for i in range(3)], classes=classes)
    split = made.splits["train"]
    many = tuple(dataclasses.replace(split.shards[0], file=f"train-{i:05d}-of-00500.tfrecord") for i in range(500))
    sizes = {f"{10 + i}x20": i + 1 for i in range(50)}
    histogram = tuple(range(300, 1300))
    abridged = dataclasses.replace(split, shards=(split.shards[0], *many[1:]), label_histogram=histogram)
    made = dataclasses.replace(
        made,
        features=made.features | {"image": Feature("uint8", (None, 20, 1), "raw")},
        splits={"train": dataclasses.replace(abridged, image_sizes=sizes)},
        source=tuple(SourceFile(f"{i}.parquet", 1, "") for i in range(1000)),
    )
    rendered = "".join(str(part) for part in sections(made))
    text = " ".join(Page(rendered).text)
    assert "class 999" in text
    assert "class 980" in text
    assert "class 979" not in text
    assert "class 4" in text
    assert "975 classes between" in text
    assert "500 files" in text
    assert "460 more shards" in text
    assert "train-00019-of-00500" in text
    assert "train-00020-of-00500" not in text
    assert "960 more files" in text
    assert "38 other sizes, 741 images" in text
    assert len(rendered) < 100_000


def sections(made):
    from beam_jobs.report.card import sections as parts

    return [part(made) for part in (parts.head, parts.labels, parts.sizes, parts.shards, parts.source)]


def test_bars_are_as_long_as_their_counts(tmp_path):
    made = write_data(tmp_path, [[(bytes(64), 0, b"k")] * 40 + [(bytes(64), 1, b"k")] * 10], classes="abc")
    widths = [rect["width"] for rect in page_of(tmp_path, made).attributes("rect")]
    assert widths == ["100.00", "25.00", "0.00"]


def test_a_profile_keeps_the_outline_of_many_values():
    path = Page(card_html.profile([8, 4, 2, 2], steps=2)).attributes("path")[0]["d"]
    assert path == "M0 100V25.0H50.00V75.0H100.00V100Z"
    assert len(card_html.profile(range(100_000))) < 6000


def test_text_that_is_very_long_is_cut():
    text = card_html.element("p", "x" * 10**6)
    assert len(text) < 21_000
    assert "(1,000,000 characters)" in text


def test_the_command_can_be_pasted_and_holds_no_secret():
    arguments = ["--dataset=mnist", "--source=it's here", "--data_dir=a b"]
    text = card.command_line("beam_jobs.convert", arguments)
    shown = subprocess.run(
        ["sh", "-c", text.replace("python", "printf '%s\\n'", 1)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines() == ["-m", "beam_jobs.convert", *arguments]
    url = "--data_dir=s3://key:secret@bucket/folder?secret_key=hidden&endpoint_override=x"
    assert card.command_line("c", [url]).endswith("'--data_dir=s3://...@bucket/folder?...'")


def test_it_is_written_beside_the_manifest(tmp_path):
    write_data(tmp_path, [raw_rows(40)])
    assert card.write_card(tmp_path, "beam_jobs.convert", ["--dataset=x"]) is None
    assert "--dataset=x" in words(Page((tmp_path / "card.html").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda shard: shard.unlink(), "FileNotFoundError"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:50]), "DataError"),
        (lambda shard: shard.write_bytes(framing.frame(b"no example")), "no example"),
        (lambda shard: shard.write_bytes(b"\xff" * 100), "record of 18446744073709551615 bytes"),
        (lambda shard: shard.with_name(naming.CARD).mkdir(), "cannot be written"),
    ],
    ids=["missing", "cut", "no example", "no record", "a folder in its place"],
)
def test_why_there_is_none_is_said_and_no_error(tmp_path, damage, why):
    made = write_data(tmp_path, [raw_rows(40)])
    damage(tmp_path / made.splits["train"].shards[0].file)
    note = card.write_card(tmp_path, "beam_jobs.convert", [])
    assert note.startswith("there is no card.html: ")
    assert why in note
    assert str(tmp_path) not in note
    assert not (tmp_path / naming.CARD).is_file()


def test_a_compressed_shard_that_is_no_gzip_file_is_no_error(tmp_path):
    made = write_data(tmp_path, [raw_rows(40)], compression="GZIP")
    (tmp_path / made.splits["train"].shards[0].file).write_bytes(b"plain")
    assert "BadGzipFile" in card.write_card(tmp_path, "x", [])


def test_a_corrupt_record_has_its_place_in_the_error(tmp_path):
    made = write_data(tmp_path, [raw_rows(40)])
    path = tmp_path / made.splits["train"].shards[0].file
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=re.escape(path.name)):
        card_samples.take(tmp_path, made)
