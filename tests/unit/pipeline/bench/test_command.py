import dataclasses
import json
import logging
import subprocess
import sys

import pytest

from pipeline import input_fn
from pipeline.bench import __main__ as bench
from pipeline.bench import measure
from pipeline.bench.subject import segments_of
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.operations import can_resize
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers.datasets import Kind, write_dataset

SHORT = ["--global_batch_size=8", "--rounds=2", "--steps=2"]
STAGES = ["read", "check", "decode", "order", "gather", "augment", "batch", "copy to device"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench")
    write_dataset(path, (20, 0, 33), (8, 6, 3), (16,))
    return path


def test_the_object_has_every_stage_and_adds_up(folder, capsys):
    bench.main([str(folder), "--augment=shift", "--seed=3", "--json", *SHORT])
    found = json.loads(capsys.readouterr().out)
    assert [stage["stage"] for stage in found["stages"]] == [*STAGES[:5], "distort", *STAGES[6:]]  # as programs know it
    occurs = {stage["stage"]: stage["occurs"] for stage in found["stages"]}
    assert occurs == {
        **dict.fromkeys(("read", "check"), "once"),
        **dict.fromkeys(("decode", "copy to device"), "absent"),
        **dict.fromkeys(("order", "gather", "distort", "batch"), "each epoch"),
    }
    each = [stage for stage in found["stages"] if stage["occurs"] == "each epoch"]
    assert sum(stage["share"] for stage in each) == pytest.approx(1)
    for stage in each:
        cost = stage["processor_us_per_image"]
        assert 0 <= cost["lowest"] <= cost["median"] <= cost["highest"]
    assert found["bound"]["stage"] in {stage["stage"] for stage in each}
    assert found["images"] == 53
    assert (found["spec"]["seed"], found["spec"]["global_batch_size"], found["distort"]) == (3, 8, "shift")
    assert found["images_per_second"]["median"] > 0
    assert set(found["sections"]) == {"planning", "making batches"}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    path = tmp_path_factory.mktemp("photographs")
    write_dataset(path, (9, 7), (240, 320, 3), kind=Kind("jpeg", varied=True))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows",
    [
        pytest.param([], id="in memory", marks=pytest.mark.slow),
        pytest.param(["--shuffle_bytes=2000000", "--streams=2"], id="in windows"),
    ],
)
def test_decoding_and_augmenting_jpegs_are_stages_of_their_own(windows, photographs, capsys):
    recipe = "random_resized_crop(size=8, normalize=False) | normalize"
    bench.main([str(photographs), "--json", f"--augment={recipe}", *windows, *SHORT])
    stages = {stage["stage"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert stages["decode"]["occurs"] == stages["distort"]["occurs"] == "each epoch"
    assert stages["decode"]["note"] == ("crops, resizes and flips, too" if can_resize() else "")
    assert stages["decode"]["processor_us_per_image"]["median"] > 0  # 8x8 pixels to normalise are below its noise


@pytest.mark.skipif(not can_resize(), reason="without the operation that resizes, flips are a stage of their own")
def test_what_is_done_while_images_are_decoded_is_no_other_stage(photographs, capsys):
    bench.main([str(photographs), "--json", "--augment=random_resized_crop(size=8, normalize=False)", *SHORT])
    stages = {stage["stage"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert (stages["distort"]["occurs"], stages["distort"]["note"]) == ("absent", "done while images are decoded")


@pytest.mark.slow
def test_the_input_is_that_of_the_flags(folder, capsys):
    flags = ["--split=test[:8]", "--evaluation", "--resize=4x4", "--replicas=2", "--seed=5"]
    bench.main([str(folder), "--json", *flags, *SHORT])
    found = json.loads(capsys.readouterr().out)
    spec = found["spec"]
    assert (found["images"], found["resize"], len(found["devices"])) == (8, [4, 4], 2)
    assert (spec["split"], spec["training"], spec["remainder"]) == ("test[:8]", False, "pad")
    bench.main([str(folder), "--json", "--remainder=drop", "--global_batch_size=10", "--rounds=1", "--steps=1"])
    assert json.loads(capsys.readouterr().out)["spec"]["remainder"] == "drop"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "count", "view"),
    [
        (["--where=label != 1"], 35, "where: label != 1"),
        (["--limit=20"], 20, "limit: 20"),
        (["--where=label < 2", "--balance=label"], 36, "where: label < 2; balance: label"),
        (["--classes=class 1,class 0"], 36, "classes: class 1, class 0"),
        (["--weigh=label"], 52, "weigh: label"),
    ],
)
def test_a_view_is_timed(folder, flags, count, view, capsys):
    index.main([str(folder), "--add_columns=records"])
    bench.main([str(folder), "--json", *flags, "--global_batch_size=8", "--rounds=1", "--steps=1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["images"], found["spec"]["view"].partition("; column")[0]) == (count, view)


@pytest.mark.slow
def test_each_part_is_sampled_in_so_many_rounds_of_so_many_steps(folder, capsys, monkeypatch):
    taken, sample = [], measure.Part.sample
    monkeypatch.setattr(measure.Part, "sample", lambda part: taken.append(part) or sample(part))
    bench.main([str(folder), "--json", "--global_batch_size=8", "--rounds=3", "--steps=4"])
    assert {sum(part is other for other in taken) for part in taken} == {3}
    assert {part.count for part in taken if part.by_steps} == {4}


@pytest.mark.slow
def test_the_table_has_a_bar_per_stage_and_what_bounds_the_input(folder, capsys):
    flags = ["--split=train[10:50]", "--shuffle_bytes=3000", "--streams=4", "--augment=shift", "--augment_on=device"]
    bench.main([str(folder), *flags, *SHORT])
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "made, split train[10:50]: 40 images of 8x6x3 raw"
    assert lines[1] == (
        "training, 2 windows of 4 streams; batches of 8, augmented by shift in the steps; 1 replica on CPU:0"
    )
    rows = {name: next(line for line in lines[2:] if line.startswith(f"{name} ")) for name in STAGES}
    assert [name for name, row in rows.items() if " absent: " in row] == [
        "decode",
        "gather",
        "augment",
        "copy to device",
    ]
    assert rows["augment"].endswith("absent: left to the steps")
    assert all("%" in rows[name] for name in ("read", "check", "order", "batch"))
    assert any("#" in row for row in rows.values())
    assert lines[-1].startswith("bound by ")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--rounds=0"], "--rounds=0"),
        (["--steps=0"], "--steps=0"),
        (["--replicas=0"], "--replicas=0"),
        (["--replicas=3"], "=8 .* 3 replicas"),
        (["--streams=3"], "streams=3 .*=8"),
        (["--augment=random_crop"], "random_crop.* raw "),
        (["--shuffle_bytes=100"], "shuffle_bytes=100"),
    ],
)
def test_wrong_flags_are_one_clear_error(folder, arguments, facts):
    with pytest.raises(UsageError, match=facts):
        bench.main([str(folder), "--global_batch_size=8", *arguments])


def test_a_corrupt_record_in_a_window_is_named(tmp_path):
    write_dataset(tmp_path, (300,), (8, 6, 3))
    path = tmp_path / "train-00000-of-00001.tfrecord"
    data = bytearray(path.read_bytes())
    stride = len(data) // 300
    for record in range(50, 300):  # how far a short round reads depends on the machine
        data[(record + 1) * stride - 30] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"train-00000-of-00001.tfrecord, record \d+"):
        bench.main([str(tmp_path), "--shuffle_bytes=8000", *SHORT])


def test_help_loads_no_tensorflow():
    code = (
        "import sys\nfrom pipeline.bench import __main__\ntry:\n    __main__.main(['--help'])\n"
        "except SystemExit:\n    print('LOADED', [m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    helped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert helped.stdout.endswith("LOADED []\n")
    assert "--global_batch_size" in helped.stdout


def test_a_mixture_is_timed_from_end_to_end_in_each_segment(folder, capsys):
    mixture = f"{folder}=3,{folder}:test=1"
    bench.main([mixture, "--augment=shift", "--json", *SHORT])
    found = json.loads(capsys.readouterr().out)
    assert [(one["first_step"], one["rows"]) for one in found["segments"]] == [(0, [6, 2])]
    schedule = f"0:{folder}:train=1,{folder}:test=0;100:{folder}:train=1,{folder}:test=3"
    bench.main([mixture, f"--mixture_schedule={schedule}", "--replicas=2", "--json", *SHORT])
    found = json.loads(capsys.readouterr().out)
    assert [(one["first_step"], one["rows"]) for one in found["segments"]] == [(0, [8, 0]), (100, [2, 6])]
    assert found["spec"]["schedule"] == [[0, [8, 0]], [100, [2, 6]]]
    assert found["devices"] == ["CPU:0", "CPU:1"]
    for segment in found["segments"]:
        assert 0 < segment["images_per_second"]["lowest"] <= segment["images_per_second"]["highest"]
    bench.main([mixture, f"--mixture_schedule={schedule}", *SHORT])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"source 0: {folder}:train", f"source 1: {folder}:test"]
    assert lines[2] == "training; batches of 8; units of 2 rows, unaugmented; 1 replica on CPU:0"
    assert [line.split()[:2] for line in lines[5:7]] == [["0", "8+0"], ["100", "2+6"]]
    for more, message in [
        (["--replicas=4"], "6, .*test 2 rows, of which 4 replicas need equal parts"),
        (["--evaluation"], "training=False with 2 sources: an evaluation sees each once, by itself"),
    ]:
        with pytest.raises(UsageError, match=message):
            bench.main([mixture, *SHORT, *more])


def test_a_segment_that_is_timed_has_the_units_and_rows_of_the_whole_schedule(folder):
    data, steps = [(f"{folder}", 3), (f"{folder}:test", 1)], ((0, (8, 0)), (100, (4, 4)), (200, (2, 6)))
    schedule = [(first, {f"{folder}:train": a, f"{folder}:test": b}) for first, (a, b) in steps]
    whole = resolve_all(Request(data, global_batch_size=8, training=True, schedule=schedule))
    for segment, (first, rows) in zip(segments_of(whole), steps, strict=True):
        assert (segment.first_step, segment.rows) == (first, rows)
        assert [part.spec.global_batch_size for part in resolve_all(segment.request).parts] == [2, 2]
        options = {field.name: getattr(segment.request, field.name) for field in dataclasses.fields(Request)}
        ids = [batch[3] for batch in input_fn(**options | {"record_ids": True}).take(3)]
        assert [(i.numpy() < 53).sum() for i in ids] == [rows[0]] * 3


def test_tensorflows_warnings_are_not_shown(photographs, monkeypatch, caplog):
    """On a GPU it warns that functions are traced again and again."""
    caplog.set_level(logging.WARNING, "tensorflow")  # a conversion in this process leaves the root's level above it
    monkeypatch.setattr(bench, "_measure", lambda *_: logging.getLogger("tensorflow").warning("retracing"))
    bench.main([str(photographs), "--resize=8x8"])
    assert not caplog.records
    bench._measure()
    assert len(caplog.records) == 1
