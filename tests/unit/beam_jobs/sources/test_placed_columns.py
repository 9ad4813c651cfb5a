"""Boxes, points and masks in columns of tables: where flags find them, what they become, what is refused."""

import contextlib
import io
import json
import os

import numpy as np
import PIL.Image
import PIL.ImageOps
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import validate
from beam_jobs.sources import image_files, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest import Feature
from tests.helpers import annotated
from tests.helpers.annotated import CLASSES, file_of, size_of
from tests.helpers.foreign import CONVENTIONS

COUNT = 8


def boxes_of(made, convention="xyxy"):
    height, width = made.mask.shape
    return [list(CONVENTIONS[convention](b[1], b[0], b[3], b[2], height, width)) for b in made.boxes]


def scenes():
    return [annotated.scene(number, *size_of(number)) for number in range(COUNT)]


@pytest.fixture
def convert_table(converts):
    """A function that converts a table, as `converts`."""
    return lambda dataset, source, *flags, code=0: converts(
        f"--dataset={dataset}", f"--source={source}", *flags, code=code
    )


def parquet(path, form, convention="xyxy"):
    """Writes the scenes with boxes as columns, a struct of lists, or a list of structs."""
    made = scenes()
    names = [[CLASSES[label] for label in one.classes] for one in made]
    boxes = [boxes_of(one, convention) for one in made]
    box = pa.list_(pa.float64(), 4) if form == "structs" else pa.list_(pa.float64())
    columns = {"image": pa.array([file_of(one.pixels) for one in made])}
    if form == "columns":
        columns |= {"boxes": pa.array(boxes, pa.list_(box)), "kinds": pa.array(names, pa.list_(pa.string()))}
        columns |= {"flat": pa.array([[n for box in own for n in box] for own in boxes], pa.list_(pa.float64()))}
    elif form == "struct":
        rows = [{"bbox": own, "category": kinds} for own, kinds in zip(boxes, names, strict=True)]
        kind = pa.struct({"bbox": pa.list_(box), "category": pa.list_(pa.string())})
        columns["objects"] = pa.array(rows, kind)
    else:
        rows = [
            [{"bbox": one, "category": CLASSES.index(kind)} for one, kind in zip(own, kinds, strict=True)]
            for own, kinds in zip(boxes, names, strict=True)
        ]
        columns["objects"] = pa.array(rows, pa.list_(pa.struct({"bbox": box, "category": pa.int64()})))
    columns["middle"] = pa.array([
        [[(b[0] + b[2]) / 2, (b[1] + b[3]) / 2] for b in one.boxes] for one in made
    ], pa.list_(pa.list_(pa.float64())))  # fmt: skip
    masks = [file_of(one.mask) for one in made]
    columns["mask"] = pa.array([{"bytes": mask, "path": None} for mask in masks])
    table = pa.table(columns)
    if form == "structs":
        features = {"objects": [{"category": {"names": list(CLASSES), "_type": "ClassLabel"}}]}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=3)
    return path


def check(folder, order=CLASSES, with_masks=False):
    data = RandomAccess(folder)
    assert len(data) == COUNT
    for example in (data[i] for i in range(COUNT)):
        number = int(example["key"].decode().rpartition("#")[2])
        made = annotated.scene(number, *size_of(number))
        corners = np.array(boxes_of(made, "rel_yxyx")).reshape(-1, 4)
        np.testing.assert_allclose(example["boxes"], corners, atol=1e-6)
        assert [order[label] for label in example["box_labels"]] == [CLASSES[label] for label in made.classes]
        if with_masks:
            np.testing.assert_array_equal(example["mask"][..., 0], made.mask)
            np.testing.assert_allclose(example["points"], (corners[:, :2] + corners[:, 2:]) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("form", "boxes", "classes", "order"),
    [
        ("columns", "boxes", "kinds", sorted(CLASSES)),
        ("columns", "flat", "kinds", sorted(CLASSES)),
        ("struct", "objects.bbox", "objects.category", sorted(CLASSES)),
        ("structs", "objects.bbox", "objects.category", CLASSES),  # as the metadata names them
    ],
)
def test_columns_and_fields_of_parquet_are_boxes(tmp_path, convert_table, form, boxes, classes, order):
    flags = (f"--boxes_column={boxes}", "--box_format=xyxy", f"--box_labels_column={classes}")
    more = ("--points_column=middle", "--point_format=xy", "--mask_column=mask", "--mask_fill=3")
    folder, _ = convert_table("parquet", parquet(tmp_path / "rows.parquet", form), *flags, *more)
    made = manifests.load(folder)
    assert {name: own for name, own in made.features.items() if own.convention} == {
        "boxes": Feature("float32", (3, 4), convention="xyxy"),
        "box_labels": Feature("int64", (3,), class_names=tuple(order), convention="classes"),
        "points": Feature("float32", (3, 2), convention="xy"),
        "mask": Feature("uint8", (None, None, 1), "png", ("0", "1", "2", "3"), convention="classes", fill=3),
    }
    assert made.class_names == tuple(order)
    check(folder, order, with_masks=True)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_boxes_of_each_format_are_the_same_after_a_resize(tmp_path, convert_table, convention):
    source = parquet(tmp_path / "rows.parquet", "columns", convention)
    flags = ("--boxes_column=boxes", f"--box_format={convention}", "--box_labels_column=kinds")
    folder, _ = convert_table("parquet", source, *flags, "--resize=30x90", "--image_encoding=png")
    assert manifests.load(folder).features["boxes"].convention == convention
    check(folder, sorted(CLASSES))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_table_names_images_and_masks_and_has_boxes(tmp_path, convert_table, suffix):
    rows = []
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for number, made in enumerate(scenes()):
        (tmp_path / f"images/{number}.png").write_bytes(file_of(made.pixels))
        (tmp_path / f"masks/{number}.png").write_bytes(file_of(made.mask, palette=bool(number % 2)))
        kinds = [CLASSES[label] for label in made.classes]
        rows.append(
            {"file": f"images/{number}.png", "mask": f"masks/{number}.png", "boxes": boxes_of(made), "kinds": kinds}
        )
    source = tmp_path / f"table.{suffix}"
    if suffix == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), source)
    flags = ("--boxes_column=boxes", "--box_format=xyxy", "--box_labels_column=kinds", "--mask_column=mask")
    folder, _ = convert_table("image_table", source, *flags)
    data = RandomAccess(folder)
    for example in (data[i] for i in range(len(data))):
        made = annotated.scene(number := int(example["key"][7:-4]), *size_of(number))
        np.testing.assert_array_equal(example["mask"][..., 0], made.mask)
        assert len(example["boxes"]) == len(made.boxes)
    made = manifests.load(folder)
    assert [file.file for file in made.source] == [source.name, "images", "masks"]
    before = made.source[2].sha256
    (tmp_path / "masks/2.png").write_bytes(file_of(np.zeros(size_of(2), np.uint8)))
    assert manifests.load(convert_table("image_table", source, *flags)[0]).source[2].sha256 != before
    flags = (*flags, f"--mask_dir={tmp_path}/masks/{{}}")
    assert "no such file" in convert_table("image_table", source, *flags, code=1)[1].err


def test_masks_alone_need_no_label(tmp_path, convert_table):
    (tmp_path / "table.csv").write_text("file,mask\n" + "".join(f"{n}.png,{n}_mask\n" for n in range(COUNT)))
    for number, made in enumerate(scenes()):
        (tmp_path / f"{number}.png").write_bytes(file_of(made.pixels))
        (tmp_path / f"{number}_mask.png").write_bytes(file_of(made.mask))
    flags = ("--mask_column=mask", f"--mask_dir={tmp_path}/{{}}.png", "--resize=32x32", "--image_encoding=raw")
    folder, _ = convert_table("image_table", tmp_path / "table.csv", *flags)
    made = manifests.load(folder)
    assert made.class_names == ("0", "1", "2", "3")
    assert made.features["mask"].shape == (32, 32, 1)
    assert not made.splits["train"].has_labels
    example = RandomAccess(folder)[3]
    assert example["label"] == -1
    assert manifests.parse(made.to_bytes().decode(), "") == made


def test_a_mask_that_changes_under_a_conversion_is_noticed(tmp_path, monkeypatch):
    for name in ("0.png", "m.png"):
        (tmp_path / name).write_bytes(file_of(np.zeros((6, 4), np.uint8)))
    (tmp_path / "t.jsonl").write_text('{"file": "0.png", "mask": "m.png"}')
    options = SourceOptions("image_table", str(tmp_path / "t.jsonl"), mask_column="mask")
    source = open_source(options)
    for time in (None, (0, 0)):
        if time:
            os.utime(tmp_path / "m.png", ns=time)
        monkeypatch.setattr(image_files, "_kept", {})  # as in a worker that has read nothing yet
        with pytest.raises(DataError, match="changed") if time else contextlib.nullcontext():
            source.read("train", np.array([0]))


@pytest.mark.parametrize("flags", [(), ("--resize=12x12", "--image_encoding=raw")])
@pytest.mark.parametrize("value", [3, 6, 7])
@pytest.mark.parametrize(("form", "point"), [("yx", [1.5, 2.5]), ("rel_xy", [0.625, 0.25]), ("", [0.25, 0.625])])
def test_masks_and_points_turn_and_grow_with_their_images(tmp_path, convert_table, form, point, value, flags):
    pixels = np.zeros((6, 4), np.uint8)
    pixels[1, 2] = 1
    image = file_of(pixels, exif=value)
    table = pa.table({"image": [image], "mask": [file_of(pixels)], "middle": [[point]]})
    pq.write_table(table, tmp_path / "a.parquet")
    more = ("--mask_column=mask", "--points_column=middle", f"--point_format={form}", *flags)
    out, _ = convert_table("parquet", tmp_path / "a.parquet", *more)
    shown = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(image))))
    if flags:
        shown = shown.repeat(12 // shown.shape[0], axis=0).repeat(12 // shown.shape[1], axis=1)
    (example,) = RandomAccess(out, "train")
    assert np.array_equal(example["mask"][..., 0], shown)
    middle = (np.argwhere(shown).mean(axis=0) + 0.5) / shown.shape
    np.testing.assert_allclose(example["points"], [middle], atol=1e-6)


def one_bit(mask):
    stream = io.BytesIO()
    PIL.Image.fromarray(mask > 0).save(stream, "PNG")
    return stream.getvalue()


def test_masks_of_one_bit_are_0_and_1(tmp_path, convert_table):
    made = annotated.scene(3)
    rows = {"image": [file_of(made.pixels)], "mask": [one_bit(made.mask)]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    folder, _ = convert_table("parquet", tmp_path / "rows.parquet", "--mask_column=mask")
    np.testing.assert_array_equal(RandomAccess(folder)[0]["mask"][..., 0], made.mask > 0)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("boxes", [[9.0, 9.0, 3.0, 12.0]], "box 0 is flipped: as xyxy"),
        ("boxes", [[1.0, 2.0, 3.0]], "boxes, number 0, is [1.0, 2.0, 3.0], not 4 numbers"),
        ("boxes", None, "boxes is null; a row without any has an empty list"),
        ("boxes", [None], "boxes has a null in it"),
        ("boxes", [[1.0, 2.0, 3.0, float("inf")]], "its boxes are not all finite numbers"),
        ("kinds", ["cat"] * 5, "it has 2 boxes, but classes of 5"),
        ("kinds", ["cat", None], "kinds has a null in it"),
        ("mask", {"bytes": file_of(np.zeros((5, 7), np.uint8))}, "its mask has 5x7, and its image 64x64"),
        ("mask", {"bytes": b"x"}, "its mask: no image of a known format"),
        ("mask", {"bytes": None}, "its mask: no image of a known format: it is empty"),
    ],
)
def test_values_that_cannot_be_make_invalid_rows(tmp_path, convert_table, only_reject, name, value, reason):
    source = parquet(tmp_path / "rows.parquet", "columns")
    rows = pq.read_table(source).to_pylist()
    rows[2][name] = value
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(source)), source)
    flags = ("--boxes_column=boxes", "--box_format=xyxy", "--box_labels_column=kinds", "--mask_column=mask")
    assert "1 invalid row, over --max_rejects=0" in convert_table("parquet", source, *flags, code=1)[1].err
    row, told = only_reject(convert_table("parquet", source, *flags, "--max_rejects=1")[0])
    assert reason in told
    assert row == 2


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--boxes_column=box"], "--boxes_column: "),
        (["--boxes_column=box"], "has no column 'box'; did you mean 'boxes'?"),
        (
            ["--boxes_column=kinds"],
            "has it as list<element: string>; it must be a list with four numbers for each of the boxes",
        ),
        (["--boxes_column=image"], "it must be a list with four numbers"),
        (["--boxes_column=mask.path.x"], "'mask.path' has no field 'x'"),
        (["--boxes_column=boxes", "--box_format=cxcywh"], "--box_format"),
        (["--box_format=xyxy", "--mask_column=mask"], "--box_format=xyxy: needs --boxes_column=NAME"),
        (["--box_labels_column=kinds", "--mask_column=mask"], "needs --boxes_column=NAME"),
        (["--mask_fill=3", "--boxes_column=boxes"], "--mask_fill=3: needs --mask_column=NAME"),
        (["--mask_fill=256", "--mask_column=mask"], "--mask_fill=256: must be a class of masks, 0 to 255"),
        (["--mask_column=kinds"], "it must be binary, the bytes of PNG files"),
        (["--boxes_column=boxes", "--box_labels_column=boxes"], "it must be a list of strings or integers"),
        (["--points_column=kinds"], "it must be a list with two numbers for each of the points"),
        (["--boxes_column=boxes", "--keep_columns=boxes"], "'boxes' cannot be kept"),
    ],
)
def test_flags_that_do_not_fit_are_refused(tmp_path, convert_table, flags, text):
    folder, outcome = convert_table("parquet", parquet(tmp_path / "rows.parquet", "columns"), *flags, code=2)
    assert text in outcome.err
    assert outcome.err.count("\n") == 1
    assert not folder.exists()


def test_boxes_of_another_format_are_noticed_before_anything_is_written(tmp_path, convert_table):
    source = parquet(tmp_path / "rows.parquet", "columns")
    folder, outcome = convert_table("parquet", source, "--boxes_column=boxes", code=1)
    assert "as rel_yxyx, " in outcome.err
    assert "--box_format=xywh, xyxy, yxyx, rel_xywh, rel_xyxy" in outcome.err
    assert not folder.exists()


def test_a_converted_data_set_can_be_converted_again(tmp_path, convert_table, convert_without_beam):
    source = parquet(tmp_path / "rows.parquet", "struct")
    flags = ("--boxes_column=objects.bbox", "--box_format=xyxy", "--box_labels_column=objects.category")
    more = ("--points_column=middle", "--point_format=xy", "--mask_column=mask", "--mask_fill=3")
    folder, _ = convert_table("parquet", source, *flags, *more)
    again = tmp_path / "again"
    outcome = convert_without_beam(
        "--dataset=tfrecord", f"--source={folder}", f"--data_dir={again}", "--resize=96x128", "--image_encoding=png"
    )
    assert outcome.code == 0, outcome.err
    made, first = manifests.load(again), manifests.load(folder)
    assert made.features["mask"].shape == (96, 128, 1)
    for name in ("boxes", "box_labels", "points"):
        assert made.features[name] == first.features[name]
    check(again, sorted(CLASSES))


def test_validate_names_a_record_that_the_manifest_does_not_describe(tmp_path, convert_table, capfd):
    source = parquet(tmp_path / "rows.parquet", "struct")
    flags = ("--boxes_column=objects.bbox", "--box_format=xyxy", "--box_labels_column=objects.category")
    folder, _ = convert_table("parquet", source, *flags, "--columns=none")
    validate.main([str(folder)])
    content = json.loads((folder / "manifest.json").read_text())
    del content["content_sha256"]
    for name in ("boxes", "box_labels"):
        content["features"][name]["shape"][0] = 2
    (folder / "manifest.json").write_text(json.dumps(content))
    capfd.readouterr()
    with pytest.raises(DataError):
        validate.main([str(folder)])
    assert "it has 3 box_labels, the manifest says 2 at most" in capfd.readouterr().out
