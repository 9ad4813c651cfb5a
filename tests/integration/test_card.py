"""The card of real data sets, as the command writes it and as a browser shows it."""

import dataclasses
import json
import re
import shutil
import subprocess

import numpy as np
import PIL.ExifTags
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.report import card
from beam_jobs.report.summary import facts_of_manifest
from pipeline import manifest
from pipeline.files.paths import path_of
from tests.helpers import forked
from tests.helpers.converting import convert_in_process
from tests.helpers.foreign import png

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")

pytest.importorskip("sklearn")


def convert(out, *flags, dataset="digits"):
    done = forked.run(["-m", "beam_jobs.convert", f"--dataset={dataset}", f"--data_dir={out}", *flags])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits' data set, and the command's output."""
    out = tmp_path_factory.mktemp("card") / "digits"
    return out, convert(out)


def test_the_command_writes_it_and_says_where(digits):
    out, printed = digits
    page = (out / "card.html").read_text(encoding="utf-8")
    assert f" {out}/card.html\n" in printed
    assert page.count("data:image/png;base64,") == 50
    assert manifest.load(out).digest in page
    assert f"--data_dir={out}" in page
    assert len(page) < 100_000


def test_a_data_set_that_is_replaced_gets_a_new_one(digits, tmp_path):
    out = tmp_path / "digits"
    shutil.copytree(digits[0], out)
    convert(out, "--overwrite", "--seed=7", "--num_shards=train:3")
    page = (out / "card.html").read_text(encoding="utf-8")
    assert "--seed=7" in page
    assert "train-00002-of-00003.tfrecord" in page
    assert manifest.load(out).digest in page


def write_sorted(path):
    """Writes 2,000 images of 10 classes, one class after the other, in row groups of 100; row 17 is not an image."""
    draw = np.random.default_rng(0)
    images = [png(draw.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(2000)]
    images[17] = b"no image"
    labels = pa.array([f"kind <{row // 200}>" for row in range(2000)])
    pq.write_table(pa.table({"image": images, "label": labels}), path, row_group_size=100)


def test_a_sorted_source_is_warned_of_and_two_passes_mend_it(tmp_path):
    write_sorted(tmp_path / "sorted.parquet")
    flags = (f"--source={tmp_path / 'sorted.parquet'}", "--num_shards=4", "--max_rejects=1")
    one, two = tmp_path / "one", tmp_path / "two"
    printed = convert(one, *flags, dataset="parquet")
    assert re.search(r"^warning: .* train .*--passes=2", printed, re.M)
    assert 'class="warning"' in (one / "card.html").read_text(encoding="utf-8")
    printed = convert(two, *flags, "--passes=2", dataset="parquet")
    assert "warning" not in printed
    page = (two / "card.html").read_text(encoding="utf-8")
    assert 'class="warning"' not in page
    assert "kind &lt;9&gt;" in page
    for out in (one, two):
        assert json.loads((out / "rejects.jsonl").read_text(encoding="utf-8"))["row"] == 17
    assert f"{two}/rejects.jsonl" in printed


def write_photos(folder):
    """Writes 101 JPEGs of as many sizes, the largest 200x40, of classes 0 and 2; two are on their side, 40 wide."""
    for number in range(101):
        exif = PIL.Image.Exif()
        exif[PIL.ExifTags.Base.Orientation] = 6 if number < 2 else 1
        path = folder / f"{2 * (number % 2)}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", (40, 100 + number)).save(path, exif=exif)


@pytest.mark.parametrize("passes", [1, 2])
def test_what_is_said_of_photos_of_many_sizes_is_true(passes, tmp_path):
    write_photos(tmp_path / "photos")
    source, out = f"--source={tmp_path / 'photos'}", tmp_path / "out"
    printed = convert(out, source, f"--passes={passes}", "--num_shards=2", dataset="image_folder")
    assert "  jpeg images, colour, of 101 sizes: 40x100, 40x101, 102x40 and 98 more, the largest 200x40\n" in printed
    assert "  2 image files turned upright" in printed
    assert "warning" not in printed
    page = (out / "card.html").read_text(encoding="utf-8")
    assert "The images have 101 sizes, the largest 200 \u00d7 40; here, sides are rounded up" in page
    assert 'class="warning"' not in page
    printed = convert(tmp_path / "upright", source, "--image_encoding=png", dataset="image_folder")
    assert "warning" not in printed
    sizes = manifest.load(tmp_path / "upright").splits["train"].image_sizes
    assert sizes == {"64x128": 2, "128x64": 27, "192x64": 64, "256x64": 8}


@pytest.mark.skipif(not BROWSER, reason="Chromium is not installed")
@pytest.mark.parametrize(("scheme", "low", "high"), [(1, 200, 256), (0, 0, 60)], ids=["light", "dark"])
@pytest.mark.quick(1)
def test_a_browser_shows_it_light_or_dark_as_the_reader_likes(digits, tmp_path, scheme, low, high):
    picture = tmp_path / "card.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'user'}"]
    subprocess.run(
        [
            *(BROWSER, *flags, f"--screenshot={picture}", "--window-size=1000,2200"),
            *(f"--blink-settings=preferredColorScheme={scheme}", (digits[0] / "card.html").as_uri()),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    pixels = np.asarray(PIL.Image.open(picture).convert("RGB"), np.int64)
    assert pixels.shape == (2200, 1000, 3)
    assert low <= np.median(pixels) < high  # the page
    assert ((pixels[..., 2] - pixels[..., 0]) > 80).sum() > 20_000  # blue: the bars
    assert (pixels.max(axis=2) == 0).sum() > 50_000  # black: around the digits


def worst_card(out):
    """Returns a card with three splits, long numbers and names, and every column."""
    convert_in_process("--dataset=digits", f"--data_dir={out}", "--split=train:0.8,validation:0.1,a_split_of_mine:0.1")
    made = manifest.load(out)
    splits = {
        name: dataclasses.replace(
            split, num_rejects=12_345_678, label_histogram=tuple(n * 1_234_567 for n in split.label_histogram)
        )
        for name, split in made.splits.items()
    }
    names = ("a class whose name has many words and an_underscored_one_that_is_long", *made.class_names[1:])
    image = dataclasses.replace(made.features["image"], shape=(None, None, None), encoding="any")
    features = made.features | {"image": image, "a_feature/of/a/long/name": manifest.Feature("float32", (12, 12, 12))}
    shown = dataclasses.replace(made, splits=splits, class_names=names, features=features)
    return card.make_card(path_of(str(out)), shown, "python -m beam_jobs.convert", facts_of_manifest(made))


@pytest.mark.skipif(not BROWSER, reason="Chromium is not installed")
@pytest.mark.parametrize(("kind", "width"), [("digits", 360), ("digits", 1200), ("worst", 360), ("worst", 1200)])
@pytest.mark.quick(2)
def test_no_table_is_cut_on_a_phone(digits, tmp_path, kind, width):
    page = (digits[0] / "card.html").read_text(encoding="utf-8") if kind == "digits" else worst_card(tmp_path / "worst")
    page = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", page)  # which forbids the script
    script = f"""
    document.documentElement.style.width = "{width}px";  // a window has 500 or more
    document.title = [...document.querySelectorAll(".wide, body")].map(e => e.scrollWidth - e.clientWidth).join(" ");
    """
    (tmp_path / "card.html").write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={tmp_path / 'user'}"]
    done = subprocess.run(
        [BROWSER, *flags, f"--window-size={width},2000", (tmp_path / "card.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert re.search("<title>(.*?)</title>", done.stdout)[1] == "0 0 0 0 0 0 0"  # pixels that do not fit
