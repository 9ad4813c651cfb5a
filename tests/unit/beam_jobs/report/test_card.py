"""The page of small data sets with names that would break a page made carelessly."""

import base64
import dataclasses
import html.parser
import io
import subprocess
from collections import Counter

import numpy as np
import PIL.Image
import pytest

from beam_jobs.report import card, summary
from beam_jobs.report.summary import ImageFacts
from pipeline import manifest as manifests
from pipeline.images import BadImageError
from pipeline.manifest import Feature, Manifest, SourceFile, SplitInfo, naming
from pipeline.read.statistics import entropy, label_histogram
from pipeline.records import framing, tf_example
from tests.helpers import annotated
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import encoded, images_of, write_shard

VOID = {"img", "meta"}
HOSTILE = ['<script>alert("1")</script>', "</figure></body>'\"", "a\u202eb\0c\x1b[2J", "{{ 7 * 7 }}&amp;<b>", "\ud800"]
NUMBERS = [str(i) for i in range(100)]


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

    def words(self):
        return " ".join(" ".join(self.text).split())


def write_data(folder, rows, shape=(8, 8, 1), encoding="raw", classes=("a", "b"), suffix="", split="train"):
    """Writes a data set of shards, each a list of (image, label, key), and returns its manifest."""
    folder.mkdir(exist_ok=True)
    shards = []
    for index, part in enumerate(rows):
        records = [framing.frame(tf_example.encode(dict(zip(("image", "label", "key"), r, strict=True)))) for r in part]
        shard = write_shard(folder, naming.shard_name(split, index, len(rows)) + suffix, records)
        histogram = label_histogram(np.array([row[1] for row in part], np.int64), len(classes))
        shards.append(dataclasses.replace(shard, crc32c="0123abcd", label_entropy=entropy(histogram)))
    labels = np.array([row[1] for part in rows for row in part])
    made = Manifest(
        dataset="made",
        class_names=tuple(classes),
        features={"image": Feature("uint8", shape, encoding), "label": Feature("int64"), "key": Feature("string")},
        splits={split: SplitInfo(tuple(shards), label_histogram(labels, len(classes)), {"8x8": len(labels)})},
        image_mean=(1.0,) * (shape[2] or 3),
        image_std=(2.0,) * (shape[2] or 3),
        source=(SourceFile("source.bin", 1234567, "ab" * 32),),
        options={"seed": 0},
        compression="GZIP" if suffix else "",
    )
    (folder / naming.MANIFEST).write_bytes(made.to_bytes())
    return made


def raw_rows(count, classes=2, first=0):
    images = images_of(first, count, (8, 8, 1))
    return [(images[i].tobytes(), (first + i) % classes, f"k{first + i}".encode()) for i in range(count)]


def make_card(folder, made, command, images=None):
    return card.make_card(folder, made, command, images or summary.facts_of_manifest(made))


def page_of(folder, made, command="python -m x", images=None):
    return Page(make_card(folder, made, command, images))


def test_it_shows_what_the_manifest_says(tmp_path):
    made = write_data(tmp_path, [raw_rows(30), raw_rows(20)])
    page = page_of(tmp_path, made)
    text = page.words()
    for expected in (
        "made examples 50 classes 2 images 8 \u00d7 8 \u00d7 1 raw shards 2 on disk",
        "train-00001-of-00002.tfrecord 20",
        "0123abcd 1.000",
        "source.bin 1,234,567 " + "ab" * 32,
        "mean 1.00; standard deviation 2.00",
        "--seed 0",
        "python -m x",
        made.digest,
    ):
        assert expected in text
    assert page.attributes("html") == [{"lang": "en"}]
    assert not [p for p in page.attributes("p") if p.get("class") == "warning"]
    assert make_card(tmp_path, made, "x") == make_card(tmp_path, made, "x")


def test_nothing_in_it_is_fetched_or_run(tmp_path):
    made = write_data(tmp_path, [raw_rows(30)])
    made = dataclasses.replace(made, source=(SourceFile("https://example.org/a.zip", 1, "00" * 32),))
    text = make_card(tmp_path, made, "python -m x --source=https://example.org/a.zip")
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
        options=dict.fromkeys(HOSTILE, HOSTILE[1]) | {"seed": HOSTILE, "num_shards": {HOSTILE[0]: HOSTILE[2]}},
        features=made.features | {name: Feature(name, (), None) for name in HOSTILE},
    )
    text = make_card(tmp_path, made, card.command_line("beam_jobs.convert", HOSTILE))
    text.encode()
    page = Page(text)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in harmless.tags}
    assert [image["alt"] for image in page.attributes("img")] == [
        *(HOSTILE[0], HOSTILE[1], "a\\u202eb\\x00c\\x1b[2J", HOSTILE[3], "\\ud800")
    ]
    assert page.words().count(HOSTILE[0]) > 5
    assert "49" not in page.text
    assert not set("\0\x1b\u202e\ud800") & set(text)


def test_very_long_text_is_cut(tmp_path):
    made = write_data(tmp_path, [raw_rows(10)])
    text = make_card(tmp_path, made, "x" * 10**6)
    assert len(text) < 50_000
    assert "(1,000,000 characters)" in text


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_samples_are_the_stored_images_of_each_class(tmp_path, suffix):
    rows = raw_rows(40, classes=3)
    page = page_of(tmp_path, write_data(tmp_path, [rows[:20], rows[20:]], classes="abc", suffix=suffix))
    images = page.attributes("img")
    assert [image["alt"] for image in images] == ["a"] * 5 + ["b"] * 5 + ["c"] * 5
    for number, image in enumerate(images):
        pixels, _, key = [row for row in rows if "abc"[row[1]] == image["alt"]][number % 5]
        decoded = PIL.Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))
        assert decoded.tobytes() == pixels
        assert image["title"] == f"{key.decode()}, 8 \u00d7 8"
        assert (image["width"], image["height"], image["class"]) == ("8", "8", "tiny")


def test_samples_come_from_shards_all_over_a_split_that_is_sorted_by_class(tmp_path):
    made = write_data(tmp_path, [[(bytes(64), label, b"k")] * 9 for label in range(40)], classes=NUMBERS[:40])
    found = card.take_samples(tmp_path, made)
    assert list(found.by_label) == [0, 2, 5, 7, 10, 13, 15, 18, 20, 23, 26, 28, 31, 33, 36, 39]
    page = page_of(tmp_path, made)
    assert "16 of the 40 classes of train" in page.words()
    assert any(text.startswith("Warning: ") and "--passes=2" in text for text in page.text)


def test_of_many_classes_twenty_are_shown_and_of_rare_ones_all_there_are(tmp_path):
    rows = [(bytes(64), i % 100, b"k") for i in range(500)]
    found = card.take_samples(tmp_path, write_data(tmp_path, [rows], classes=NUMBERS))
    assert list(found.by_label)[::19] == [0, 99]
    assert len(found.by_label) == 20
    rows = [(bytes(64), 0, b"k")] * 300 + [(bytes(64), 2, b"k")] * 2
    found = card.take_samples(tmp_path, write_data(tmp_path, [rows], classes="abc"))
    assert {label: len(samples) for label, samples in found.by_label.items()} == {0: 5, 2: 2}


def test_reading_is_bounded(tmp_path):
    made = write_data(tmp_path, [[(bytes(64), 0, b"k")] * 5000 + [(bytes(64), 1, b"k")]])
    assert list(card.take_samples(tmp_path, made).by_label) == [0]  # the other is beyond the records that are read
    large = [[(bytes(5 << 20), s % 2, b"k"), (bytes(5 << 20), 1 - s % 2, b"k")] for s in range(16)]
    found = card.take_samples(tmp_path, write_data(tmp_path, large, shape=(1 << 20, 5, 1)))
    assert [len(samples) for samples in found.by_label.values()] == [5, 5]


def test_without_a_training_split_the_largest_is_shown(tmp_path):
    made = write_data(tmp_path, [raw_rows(4)], split="all")
    assert card.take_samples(tmp_path, made).split == "all"
    assert "each class of all" in page_of(tmp_path, made).words()


@pytest.mark.parametrize(
    ("shape", "cell"),
    [((28, 28, 1), "--cell:84px"), ((32, 20, 1), "--cell:96px"), ((60, 60, 1), None), ((None, 8, 1), None)],
)
def test_tiny_images_of_one_size_are_scaled_by_whole_numbers(tmp_path, shape, cell):
    page = page_of(tmp_path, write_data(tmp_path, [[(bytes(64), 0, b"k")]], shape, "png"))
    assert [div.get("style") for div in page.attributes("div") if div.get("class") == "classes"] == [cell]


def test_images_that_cannot_be_decoded_are_counted(tmp_path):
    good = encoded(images_of(0, 1, (20, 30, 3))[0], "png")
    rows = [(good, 0, b"k"), (good[:-400], 0, b"k"), (b"none", 1, b"k"), (good, 1, b"k")]
    page = page_of(tmp_path, write_data(tmp_path, [rows], (20, 30, 3), "png"))
    assert len(page.attributes("img")) == 2
    assert "2 images could not be decoded" in page.words()


def test_large_images_do_not_make_a_large_page(tmp_path):
    rows = [(encoded(images_of(i, 1, (300, 300, 3))[0], "jpeg"), i % 20, b"k") for i in range(100)]
    text = make_card(tmp_path, write_data(tmp_path, [rows], (None, None, 3), "jpeg", NUMBERS[:20]), "x")
    assert len(Page(text).attributes("img")) == 100
    assert len(text) < 2_000_000


def test_an_image_file_is_shown_whole_however_long_its_text(tmp_path):
    data = encoded(images_of(0, 1, (140, 140, 3))[0], "png")
    assert len(data) > 50_000
    page = page_of(tmp_path, write_data(tmp_path, [[(data, 0, b"k")]], (140, 140, 3), "png"))
    shown = PIL.Image.open(io.BytesIO(base64.b64decode(page.attributes("img")[0]["src"].partition(",")[2])))
    assert np.array_equal(np.asarray(shown), images_of(0, 1, (140, 140, 3))[0])


def test_many_classes_shards_files_and_sizes_are_abridged(tmp_path):
    classes = [f"class {i}" for i in range(1000)]
    made = write_data(tmp_path, [raw_rows(300, 1000)], classes=classes)
    split = made.splits["train"]
    shard = split.shards[0]
    shards = (shard, *(dataclasses.replace(shard, file=f"train-{i:05d}-of-00500.tfrecord") for i in range(1, 500)))
    for other in shards[1:]:
        (tmp_path / other.file).symlink_to(tmp_path / shard.file)
    sizes = {f"{10 + i}x20": i + 1 for i in range(50)}
    made = dataclasses.replace(
        made,
        features=made.features | {"image": Feature("uint8", (None, 20, 1), "png")},
        splits={"train": SplitInfo(shards, tuple(range(300, 1300)), sizes)},
        source=tuple(SourceFile(f"{i}.parquet", 1, "") for i in range(1000)),
    )
    page = make_card(tmp_path, made, "x")
    text = Page(page).words()
    for shown in ("class 999", "class 980", "class 4", "train-00019-of-00500", "500 files", "19.parquet", "50 sizes"):
        assert f" {shown}" in text
    for hidden in ("class 979", "class 5 ", "train-00020-of-00500", " 20.parquet"):
        assert hidden not in text
    for rest in ("975 classes between", "460 more shards", "960 more files", "38 other sizes, 741 images"):
        assert rest in text
    assert len(page) < 100_000


def test_of_images_of_very_many_sizes_it_says_how_many_and_the_largest(tmp_path):
    made = write_data(tmp_path, [raw_rows(50)])
    split = dataclasses.replace(made.splits["train"], image_sizes={"64x64": 49, "512x640": 1})
    png = made.features | {"image": Feature("uint8", (None, None, 1), "png")}
    made = dataclasses.replace(made, features=png, splits={"train": split})
    images = ImageFacts(Counter({(i, 9): 1 for i in range(10, 59)} | {(480, 640): 1}))
    text = page_of(tmp_path, made, images=images).words()
    assert " 50 sizes, PNG" in text
    assert (
        "The images have 50 sizes, the largest 480 \u00d7 640; here, sides are rounded up to a multiple of 64." in text
    )
    assert " 64 \u00d7 64 49 " in text


def test_what_should_be_known_of_it_is_on_top(tmp_path):
    made = write_data(tmp_path, [[(bytes(64), label, b"k%d" % label) for label in (0, 1, 5)]], classes="012345")
    page = page_of(tmp_path, made, images=ImageFacts(Counter({(8, 8): 3})))
    assert len([p for p in page.attributes("p") if p.get("class") == "warning"]) == 1
    assert "Warning: no example has label 2, 3, 4, although labels go up to 5" in page.words()


def test_bars_are_as_long_as_their_counts(tmp_path):
    made = write_data(tmp_path, [[(bytes(64), 0, b"k")] * 40 + [(bytes(64), 1, b"k")] * 10], classes="abc")
    widths = [rect["width"] for rect in page_of(tmp_path, made).attributes("rect")]
    assert widths == ["100.00", "25.00", "0.00"]


def test_a_step_curve_keeps_the_outline_of_many_values():
    assert card.step_curve([8, 4, 2, 2], steps=2) == "M0 100V25.0H50.00V75.0H100.00V100Z"
    assert len(card.step_curve(range(100_000))) < 6000


def test_the_command_can_be_pasted_and_holds_no_secret():
    arguments = ["--dataset=mnist", "--source=it's here", "--data_dir=a b"]
    text = card.command_line("beam_jobs.convert", arguments)
    shown = subprocess.run(
        ["sh", "-c", text.replace("python", "printf '%s\\n'", 1)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines() == ["-m", "beam_jobs.convert", *arguments]
    url = "--data_dir=s3://key:secret@bucket/folder?secret_key=hidden&endpoint_override=x"
    assert card.command_line("c", [url]).endswith("'--data_dir=s3://...@bucket/folder?...'")


@pytest.mark.parametrize(
    ("damage", "why", "suffix"),
    [
        (lambda shard: shard.unlink(), "No such file", ""),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:50]), "the file ends inside the record (50 of ", ""),
        (lambda shard: shard.write_bytes(framing.frame(b"no example")), "a record is not an example with image", ""),
        (lambda shard: shard.write_bytes(b"\xff" * 100), "record 0, byte offset 0", ""),
        (lambda shard: shard.write_bytes(b"plain"), "record 0, byte offset 0 of", ".gz"),
        (lambda shard: shard.with_name(naming.CARD).mkdir(), naming.CARD, ""),
    ],
    ids=["missing", "cut", "no example", "no record", "no gzip", "a folder of its name"],
)
def test_a_failure_is_a_reason_and_no_error(tmp_path, damage, why, suffix):
    made = write_data(tmp_path, [raw_rows(40)], suffix=suffix)
    damage(tmp_path / made.splits["train"].shards[0].file)
    note = card.write_card(tmp_path, "beam_jobs.convert", [], ImageFacts(Counter()))
    assert why in note
    assert note.startswith((f"there is no {naming.CARD}: ", f"{naming.CARD}: "))
    assert str(tmp_path) not in note
    assert not (tmp_path / naming.CARD).is_file()


def file_of(kind, height=20, width=30, mode="RGB", seed=0, **options):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).convert("RGB").convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def data_of(uri):
    return base64.b64decode(uri.partition(",")[2])


@pytest.mark.parametrize(
    "data",
    [file_of("PNG"), file_of("JPEG"), file_of("PNG", mode="RGBA"), file_of("PNG", mode="P", transparency=3)],
    ids=["png", "jpeg", "alpha", "transparent"],
)
def test_small_files_are_shown_pixel_by_pixel(data):
    made = card.picture_of_file(data, 1 << 16)
    assert made.uri.startswith("data:image/png;base64,")
    shown = np.asarray(PIL.Image.open(io.BytesIO(data_of(made.uri))))
    assert np.array_equal(shown, np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")))
    assert (made.height, made.width) == (20, 30)


@pytest.mark.parametrize(
    ("data", "most_bytes"),
    [
        (file_of("PNG", 300, 400), 1 << 20),
        (file_of("JPEG", 600, 800), 1 << 20),
        (file_of("JPEG", 300, 400, mode="CMYK"), 1 << 20),
        (file_of("PNG", 1, 600), 1 << 20),
        (file_of("PNG", 100, 100), 10_000),
    ],
    ids=["large png", "large jpeg", "cmyk", "long", "many bytes"],
)
def test_other_files_are_shown_as_thumbnails(data, most_bytes):
    made = card.picture_of_file(data, most_bytes)
    thumbnail = PIL.Image.open(io.BytesIO(data_of(made.uri)))
    assert thumbnail.format == "JPEG"
    assert max(thumbnail.size) <= 160
    assert len(made.uri) < 40_000


@pytest.mark.parametrize("shape", [(300, 400, 3), (40, 40, 1), (9, 9, 2), (9, 9, 4)])
def test_pixels_are_shown_whatever_their_shape(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    made = card.picture_of_pixels(pixels.tobytes(), shape, 10_000)
    shown = PIL.Image.open(io.BytesIO(data_of(made.uri)))
    assert (made.height, made.width) == shape[:2]
    if shape[0] < 100:
        assert shown.format == "PNG"
        assert np.array_equal(np.asarray(shown), pixels[..., :3] if shape[2] >= 3 else pixels[..., 0])
    with pytest.raises(BadImageError):
        card.picture_of_pixels(pixels.tobytes()[1:], shape, 10_000)


@pytest.fixture
def boxed(tmp_path):
    """A data set with boxes, 40 scenes of training and 8 of validation, and these scenes."""
    source = annotated.coco(tmp_path / "coco", {"train": 40, "val": 8})
    convert_in_process("--dataset=coco", f"--source={source}/annotations", f"--data_dir={tmp_path}/out")
    return tmp_path / "out", [annotated.scene(number, *annotated.size_of(number)) for number in range(48)]


def histogram_of(scenes, of_scene):
    return Counter(value for scene in scenes for value in of_scene(scene))


def parts_of(scene):
    return [(right - left) * (bottom - top) / scene.mask.size for left, top, right, bottom in scene.boxes]


def test_boxes_are_counted_by_image_size_and_class(boxed):
    folder, scenes = boxed
    text = page_of(folder, manifests.load(folder)).words()
    train, validation = scenes[:40], scenes[40:]
    total, without = sum(len(scene.boxes) for scene in train), sum(not scene.boxes for scene in train)
    header = "Boxes split boxes images without least mean most standard deviation train"
    assert f"{header} {total} {without} 0 {total / len(train):,.6g} 3" in text
    assert f"{sum(len(scene.boxes) for scene in scenes)} boxes. A size is" in text
    bare = page_of(folder, dataclasses.replace(manifests.load(folder), columns={})).words()  # as of earlier releases
    expected = ["boxes per image train validation"]
    counts = [histogram_of(some, lambda scene: [len(scene.boxes)]) for some in (train, validation)]
    expected += [f"{number} {counts[0][number]} {counts[1][number]}" for number in range(4)]
    assert " ".join(expected) in text
    assert " ".join(expected) in bare
    assert header not in bare
    sizes = {"1% to 3%": (0.01, 0.03), "3% to 10%": (0.03, 0.1), "10% to 30%": (0.1, 0.3), "over 30%": (0.3, 2)}
    expected = []
    for name, (low, high) in sizes.items():
        inside = [sum(low <= part < high for scene in some for part in parts_of(scene)) for some in (train, validation)]
        expected.append(f"{name} {inside[0]} {inside[1]}")
    assert " ".join(expected) in text
    expected = ["class train validation median size"]
    for label, name in enumerate(annotated.CLASSES):
        counts = [histogram_of(some, lambda scene: scene.classes)[label] for some in (train, validation)]
        parts = [p for scene in scenes for p, own in zip(parts_of(scene), scene.classes, strict=True) if own == label]
        expected.append(f"{name} {counts[0]} {counts[1]} {100 * np.median(parts):.2g}%")
    assert " ".join(expected) in text


def test_boxes_are_drawn_on_the_samples(boxed):
    folder, scenes = boxed
    page, drawn = page_of(folder, manifests.load(folder)), []
    for tag, attributes in page.tags:
        if tag == "img":
            number = int(attributes["title"].split("/")[1][:6])
            drawn.append((number, []))
        elif tag == "rect" and "x" in attributes:
            drawn[-1][1].append([float(attributes[name]) for name in ("x", "y", "width", "height")])
    assert len(drawn) > 10
    for number, found in drawn:
        corners = [[left, top, right - left, bottom - top] for left, top, right, bottom in scenes[number].boxes]
        np.testing.assert_allclose(found, np.array(corners).reshape(-1, 4), atol=0.1)


def test_of_many_records_the_boxes_of_some_are_counted(boxed, monkeypatch):
    folder, _ = boxed
    made = manifests.load(folder)
    monkeypatch.setattr(card, "_SAMPLED_RECORDS", 10)
    assert "of 18 of the 48 examples, from all over each split." in page_of(folder, made).words()
    features = made.features | {"boxes": dataclasses.replace(made.features["boxes"], stored_as="gone")}
    text = page_of(folder, dataclasses.replace(made, features=features)).words()
    assert "0 boxes of 18" in text  # of records that lack them, none


def test_data_without_boxes_has_no_such_section(tmp_path):
    assert "Boxes" not in page_of(tmp_path, write_data(tmp_path, [raw_rows(3)])).words()
