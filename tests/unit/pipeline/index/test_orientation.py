"""Photographs in other people's records that readers turn upright: every reader gives the same pixels."""

import base64
import io
import shutil

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from beam_jobs import validate
from beam_jobs.report.card import picture_of_file
from pipeline import RandomAccess, images, input_fn
from pipeline import manifest as manifests
from pipeline.audit.__main__ import main as audit
from pipeline.batch import DECODE
from pipeline.batch.compose import choose
from pipeline.bench.subject import Subject
from pipeline.decode.images import resize
from pipeline.decode.records import ImageJudge
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import folder as folder_of
from pipeline.index import __main__ as index
from pipeline.manifest import PixelRule
from pipeline.manifest.columns import ORIENTATION, Columns
from pipeline.manifest.splits import select
from pipeline.records.stream import records_of
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers import foreign
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import said
from trainer.exporting.predictions import pixels_of

FLAGS = ("--split=train:train-*", "--feature_map=image:image,label:label,key:key", "--orientation=upright")
SIZE = (37, 53)  # of the upright images: odd, so that no block of a JPEG file ends with its picture
COUNT = 20


BAD = {  # cut off; an orientation of 9; nothing of EXIF
    17: b"MM\0*\0\0\xff\xff\0",
    18: b"MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\x09\0\0\0\0\0\0",
    19: b"6",
}


def photograph(number, form="JPEG"):
    """Returns a file of the size `SIZE` once it is upright; three in twenty have damaged EXIF data, or none."""
    turn = number % 8 + 1
    size = SIZE[::-1] if turn >= 5 else SIZE
    if number < 16:
        return foreign.jpeg(number, size, turn, form)
    plain = foreign.jpeg(number, SIZE, 0, form)
    if number == 16:
        return plain
    stream = io.BytesIO()
    PIL.Image.open(io.BytesIO(plain)).save(stream, form, exif=b"Exif\0\0" + BAD[number])
    return stream.getvalue()


def write(folder, form="JPEG"):
    """Writes 20 records in two files: two of each orientation, and 4 whose EXIF data say nothing; returns the files."""
    files = [photograph(number, form) for number in range(COUNT)]
    records = [{"image": file, "label": n % 3, "key": b"%02d" % n} for n, file in enumerate(files)]
    foreign.write(folder / "train-0", records[:9])
    foreign.write(folder / "train-1", records[9:])
    return files


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    files = write(folder)
    index.main([str(folder), *FLAGS])
    return folder, files


def upright(file):
    with PIL.Image.open(io.BytesIO(file)) as opened:
        return np.asarray(PIL.ImageOps.exif_transpose(opened) if images.orientation_of(file) > 1 else opened)


def fed(folder, **options):
    """Returns {number of the record: image}; of a record that is there twice, one of its images."""
    options = {"global_batch_size": 4, "training": False, "epochs": 1, "features": ("key",), **options}
    found = {}
    for x, _, weights in input_fn(folder, **options):
        for key, image, weight in zip(x["key"].numpy(), x["image"].numpy(), weights.numpy(), strict=True):
            if weight:
                found[int(key)] = image
    return found


def test_the_manifest_says_the_rule_and_the_sizes_of_upright_images(made, capsys):
    folder, _ = made
    found = manifests.load(folder)
    assert (found.pixels, found.turns_images) == (PixelRule("upright", "exact"), True)
    assert found.features["image"].shape == (*SIZE, 3)
    assert found.splits["train"].image_sizes == {"37x53": COUNT}
    turns = Columns(folder, found, select(found, "train"))[ORIENTATION]
    assert turns.tolist() == [*range(1, 9)] * 2 + [1] * 4
    index.main([str(folder), *FLAGS, "--overwrite"])
    assert "  14 images turned upright whenever they are decoded" in capsys.readouterr().out
    assert manifests.load(folder) == found


WAYS = {
    "resident": {},
    "windows": {"shuffle_bytes": 24_000},
    "training": {"training": True, "shuffle_bytes": 24_000, "streams": 2},
    "portable": {"portable": True},
    "resized": {"resize": (24, 24)},
    "resized portable": {"resize": (24, 24), "portable": True, "shuffle_bytes": 24_000},
    "part": {"split": "train[5:]"},
    "view": {"training": True, "where": "label > 0"},
    "weighted": {"training": True, "weigh": ORIENTATION, "shuffle_bytes": 24_000},
    "weighted resident": {"training": True, "weigh": ORIENTATION},
    "weighted portable": {"training": True, "weigh": ORIENTATION, "portable": True},
    "skipping": {"on_corrupt": "skip"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.quick(2)
def test_what_is_fed_is_upright(made, way):
    folder, files = made
    found = fed(folder, **WAYS[way])
    assert set(found) == set(range(COUNT) if way not in ("part", "view") else found)
    assert len(found) == {"part": 15, "view": 13}.get(way, COUNT)
    for number, image in found.items():
        expected = upright(files[number])
        expected = resize(tf.constant(expected), (24, 24)) if "resized" in way else expected
        assert np.array_equal(image, expected), number


CROPPED = "random_resized_crop(size=16, normalize=False)"


COPIES = {"training": False, "eval_copies": 2}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle_bytes": 24_000}, {"weigh": ORIENTATION}, {"copies": 2}, COPIES])
def test_crops_are_alike_however_they_are_read(made, options):
    given = {"augment": CROPPED, "training": True, "features": (), "global_batch_size": 4, "epochs": 1, **options}
    kept = [x.numpy() for x, _, _ in input_fn(made[0], **given)]
    portable = [x.numpy() for x, _, _ in input_fn(made[0], **given, portable=True)]
    assert len(kept) >= 5
    assert all(np.array_equal(one, other) for one, other in zip(kept, portable, strict=True))


def test_the_middle_is_that_of_the_upright_image(made):
    folder, files = made
    options = {"augment": "random_crop(size=16, normalize=False)", "global_batch_size": 20, "training": False}
    [(x, _, _)] = input_fn(folder, **options)
    for number, image in enumerate(x.numpy()):
        expected = upright(files[number]).astype(int)[10:26, 18:34]
        # At a part's border libjpeg interpolates colours without their neighbours.
        assert np.abs(image[2:-2, 2:-2] - expected[2:-2, 2:-2]).max() <= 1, number


def test_sources_of_a_mixture_turn_their_own(made, tmp_path):
    write(tmp_path)
    index.main([str(tmp_path), *FLAGS[:2]])  # as stored: of two sizes
    folder, files = made
    mixture = [(folder, 0.5), (tmp_path, 0.5)]
    options = {"global_batch_size": 4, "training": True, "resize": (24, 24), "record_ids": True}
    seen = {True: 0, False: 0}
    for x, _, _, ids in input_fn(mixture, **options).take(8):
        for image, number in zip(x.numpy(), ids.numpy().tolist(), strict=True):
            is_upright, file = number < COUNT, files[number % COUNT]
            expected = upright(file) if is_upright else images.pixels(images.open_file(file))
            assert np.array_equal(image, resize(tf.constant(expected), (24, 24)))
            seen[is_upright] += 1
    assert seen == {True: 16, False: 16}


def test_pixels_are_those_of_the_same_records_converted(tmp_path):
    write(tmp_path / "foreign", "PNG")  # which are turned without loss
    index.main([str(tmp_path / "foreign"), *FLAGS])
    flags = ("--dataset=tfrecord", "--image_encoding=source")
    made = convert_in_process(*flags, f"--source={tmp_path}/foreign", f"--data_dir={tmp_path}/made")
    one, other = fed(tmp_path / "foreign"), fed(made)
    assert one.keys() == other.keys() == set(range(COUNT))
    assert all(np.array_equal(one[number], other[number]) for number in one)
    ours, theirs = manifests.load(tmp_path / "foreign"), manifests.load(made)
    assert (ours.image_mean, ours.image_std) == (theirs.image_mean, theirs.image_std)
    assert ours.features["image"].shape == theirs.features["image"].shape
    assert (theirs.pixels, theirs.turns_images) == (PixelRule("upright", "exact"), False)


def test_examples_cards_predictions_and_judges_agree(made):
    folder, files = made
    found = manifests.load(folder)
    examples = RandomAccess(folder)
    records = [record for name in ("train-0", "train-1") for _, record in records_of(folder_of(folder) / name, "")]
    judge = ImageJudge(found)
    for number, file in enumerate(files):
        expected = upright(file)
        assert np.array_equal(examples[number]["image"], expected)
        assert np.array_equal(pixels_of(file, 3, found.pixels), expected)
        picture = picture_of_file(file, 1 << 16, upright=True)
        assert (picture.height, picture.width) == SIZE
        drawn = images.pixels(images.open_file(base64.b64decode(picture.uri.partition(",")[2])))
        assert np.array_equal(drawn, expected)
        assert judge.problem(records[number]) is None


def test_the_check_and_the_audit_take_it_as_it_is(made, tmp_path, capsys):
    folder, _ = made
    validate.main([str(folder), "--deep", f"--report={tmp_path}/report.json"])
    assert "the data set matches its manifest" in capsys.readouterr().out
    audit([f"--data_dir={folder}", "--global_batch_size=4", "--workers=2", "--content"])
    assert "differ" not in capsys.readouterr().out


def test_where_the_time_goes_is_measured_on_upright_images(made):
    subject = Subject.opened(resolve(Request(made[0], global_batch_size=4, training=True, where="label > 0")), None)
    [decode] = [part for part in subject.parts() if part.name == DECODE]
    assert decode.take(1) == 13


def test_sizes_in_columns_are_those_of_upright_images(tmp_path):
    kinds = (((40, 48), 1), ((40, 48), 6), ((30, 20), 8))
    files = [foreign.jpeg(n, size, exif) for n, (size, exif) in enumerate(kinds)]
    foreign.write(tmp_path / "train-0", [{"image": file, "label": n, "key": b"%d" % n} for n, file in enumerate(files)])
    index.main([str(tmp_path), *FLAGS])
    for flags in ((), ("--add_columns=records",)):
        if flags:
            index.main([str(tmp_path), *flags])
        made = manifests.load(tmp_path)
        columns = Columns(tmp_path, made, select(made, "train"))
        assert columns["height"].tolist() == [40, 48, 20]
        assert columns["width"].tolist() == [48, 40, 30]
        assert columns[ORIENTATION].tolist() == [1, 6, 8]
    (tmp_path / "f.py").write_text(f"def f(record):\n    return {{'{ORIENTATION}': 1}}\n")
    with pytest.raises(UsageError, check=said(ORIENTATION)):
        index.main([str(tmp_path), f"--add_columns={tmp_path}/f.py:f"])


def test_where_nothing_is_turned_nothing_is_asked_for(tmp_path):
    foreign.write(tmp_path / "train-0", [{"image": foreign.jpeg(n), "label": n, "key": b"%d" % n} for n in range(4)])
    index.main([str(tmp_path), *FLAGS])
    assert choose(resolve(Request(tmp_path, global_batch_size=2, training=False)))[1].form.turns is None


def test_without_the_column_that_turns_images_none_is_fed(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "copy")
    (file,) = tmp_path.glob("copy/columns/train.exif_orientation.*")
    file.unlink()
    with pytest.raises(DataError, check=said("exif_orientation", "cannot be read", "index the files again")):
        fed(tmp_path / "copy")


def test_raw_pixels_and_names_that_are_taken_are_refused(tmp_path):
    record = {"image": bytes(12), "label": 0, "key": b"k", ORIENTATION: 3}
    foreign.write(tmp_path / "train-0", [record])
    with pytest.raises(UsageError, check=said("--orientation=upright", "raw pixels")):
        index.main([str(tmp_path), *FLAGS, "--image_shape=2x2x3"])
    foreign.write(tmp_path / "train-0", [{**record, "image": foreign.jpeg(0)}])
    with pytest.raises(UsageError, check=said("--keep_columns", ORIENTATION)):
        index.main([str(tmp_path), *FLAGS, f"--keep_columns={ORIENTATION}"])
    with pytest.raises(UsageError, check=said("sideways", "stored, upright")):
        index.main([str(tmp_path), *FLAGS[:2], "--orientation=sideways"])
    with pytest.raises(UsageError, check=said("--orientation=upright", "--feature_map")):
        index.main([str(tmp_path), "--orientation=upright"])
