"""The validator as a user runs it, on damaged data sets: its messages and exit codes."""

import json
import re
import signal
import time

import crc32c
import numpy as np
import pytest

from beam_jobs import convert, validate
from beam_jobs.report.card import write_card
from beam_jobs.report.summary import facts_of_manifest
from pipeline import manifest as manifests
from pipeline.errors import PipelineError
from pipeline.files.paths import path_of
from pipeline.index import __main__ as index
from pipeline.manifest import naming
from tests.helpers import forked
from tests.helpers.datasets import flip
from tests.helpers.foreign import png
from tests.helpers.lanes import some_slow
from tests.helpers.validated import KINDS, edit, examples_of, pixels_of, rewrite_shard, write

BUNDLES = "--runner=apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"
OK = r".*: 22 records in 4 shards, [\d,]+ bytes read, .* records/s"


@pytest.fixture
def run(capfd):
    """Runs the command in this process, as Beam is imported once; returns (exit code, stdout's lines, stderr)."""

    def command(*arguments):
        capfd.readouterr()
        code, text = 0, ""
        try:
            validate.main([str(argument) for argument in arguments])
        except PipelineError as error:
            code, text = error.exit_code, str(error)
        captured = capfd.readouterr()
        assert captured.err == ""
        lines = [line for line in captured.out.splitlines() if not re.match(r"\d+ of \d+ shards, ", line)]  # progress
        return code, lines, text

    return command


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deep", some_slow([(), ("--deep",)], [("--deep",)], together=True))
@pytest.mark.quick(1)
def test_a_data_set_as_it_was_written_is_said_to_be_so(kind, deep, tmp_path, run):
    made = write(tmp_path, kind)
    code, lines, error = run(*deep, tmp_path)
    assert (code, error) == (0, "")
    assert lines[0] == f"{tmp_path}: checking 22 records in 4 shards"
    assert re.fullmatch(OK, lines[1])
    assert f" {sum(split.num_bytes for split in made.splits.values()):,} bytes read" in lines[1]
    assert ("pixels looked at" in lines[1]) == bool(deep)
    rest = [line for line in lines[2:] if not line.startswith("  ")]
    assert len(rest) == bool(deep)  # the images of test are those of train, too
    assert all(line.startswith("found: test and train share images") for line in rest)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(["--direct_running_mode=multi_processing", "--direct_num_workers=2"], marks=pytest.mark.slow),
        ["--direct_running_mode=multi_threading", "--direct_num_workers=2"],
        ["--direct_runner_bundle_repeat=1"],
        [BUNDLES],
    ],
)
def test_every_runner_finds_the_same(how, tmp_path, run):
    write(tmp_path)
    flip(tmp_path / "train-00001-of-00003.tfrecord", 30)
    (tmp_path / "test-00000-of-00001.tfrecord").unlink()
    code, lines, error = run(tmp_path)
    other_code, other_lines, other_error = run(tmp_path, *how)
    assert (code, error) == (other_code, other_error) == (1, f"{tmp_path}: 2 problems in 2 of 4 shards")
    assert lines[1:-1] == other_lines[1:-1]
    assert lines[1] == "test-00000-of-00001.tfrecord: cannot be read: No such file or directory"
    assert lines[2].startswith("train-00001-of-00003.tfrecord, record 0, byte offset 0: ")
    assert re.fullmatch(r"2 problems in 2 of 4 shards: 18 records in 4 shards, [\d,]+ bytes read, .*", lines[3])


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_comes_twice_is_named_with_both_records(kind, tmp_path, run):
    write(tmp_path, kind)
    end = ".gz" if kind == "gzip" else ""
    one, other = f"train-00000-of-00003.tfrecord{end}", f"train-00002-of-00003.tfrecord{end}"
    examples = examples_of(tmp_path, other)
    offset = sum(map(len, framed(examples[:4])))
    examples[4] |= {"key": examples_of(tmp_path, one)[1]["key"]}
    rewrite_shard(tmp_path, other, examples)
    code, lines, error = run(tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 1 problem in 1 of 4 shards")
    assert re.match(rf"{other}, record 4, byte offset {offset}\b.*: .*record 1 of {one}: 'train.bin#001'", lines[1])


def framed(examples):
    from pipeline.records import framing, tf_example

    return [framing.frame(tf_example.encode(example)) for example in examples]


def test_totals_that_are_not_of_the_shards_are_found(tmp_path, run):
    made = write(tmp_path, "png")
    histogram = list(made.splits["train"].label_histogram)
    assert histogram == [5, 4, 4, 5]

    def change(content):
        train = content["splits"]["train"]
        train["label_histogram"] = [4, 5, 4, 5]
        train["image_sizes"] = {"4x5": 7, "5x5": 6, "6x5": 5}
        content["image_mean"][1] += 0.01

    edit(tmp_path, change)
    code, lines, error = run(tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 1 problem in the other files")
    assert lines[1] == (
        "manifest.json: split 'train': label_histogram says 4 examples of label 0, there are 5; "
        "5 examples of label 1, there are 4"
    )
    code, lines, error = run(tmp_path, "--deep")
    assert error == f"{tmp_path}: 3 problems in the other files"
    found = sorted(lines[1:4])
    assert re.fullmatch(r"manifest.json: image_mean says [\d., ]+, the pixels' is [\d., ]+", found[0])
    assert found[1].endswith("image_sizes says 7 examples of 4x5, there are 6; 5 examples of 6x5, there are 6")


@pytest.mark.parametrize("name", naming.TFDS_FILES)
def test_what_tensorflow_datasets_reads_is_compared_with_the_manifest(name, tmp_path, run):
    write(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    code, lines, error = run(tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 1 problem in the other files")
    assert lines[1].startswith(f"{name}: was edited: ")
    path.unlink()
    code, lines, _ = run(tmp_path)
    assert code == 1
    assert lines[1].startswith(f"{name}: is missing; ")
    path.write_bytes(whole)
    assert run(tmp_path)[0] == 0


def test_files_of_tensorflow_datasets_that_describe_another_data_set_are_found(tmp_path, run):
    write(tmp_path, "gzip")  # which it cannot read
    (tmp_path / "features.json").write_text("{}")
    code, lines, _ = run(tmp_path)
    assert code == 1
    assert lines[1].startswith("features.json: does not belong to this data set; ")


def test_an_edited_manifest_is_not_validated(tmp_path, run):
    write(tmp_path)
    path = tmp_path / naming.MANIFEST
    path.write_text(path.read_text().replace("class 1", "class one"))
    code, lines, error = run(tmp_path)
    assert (code, lines) == (1, [])
    assert error.startswith(f"{path}: was edited: ")


def test_totals_are_not_compared_where_a_record_could_not_be_read(tmp_path, run):
    write(tmp_path)
    flip(tmp_path / "train-00000-of-00003.tfrecord", 60)
    code, lines, _ = run(tmp_path, "--deep")
    assert code == 1
    assert lines[1].startswith("train-00000-of-00003.tfrecord, record 0, byte offset 0: ")
    assert len([line for line in lines if not line.startswith(("found", "  "))]) == 3


def test_raw_pixels_are_summed_by_deep(tmp_path, run):
    write(tmp_path, "raw", (100, 30))
    assert run(tmp_path, "--deep")[0] == 0
    edit(tmp_path, lambda content: content["image_std"].__setitem__(2, content["image_std"][2] + 1e-6))
    assert run(tmp_path)[0] == 0
    code, lines, _ = run(tmp_path, "--deep")
    assert code == 1
    assert lines[1].startswith("manifest.json: image_std says ")


def test_the_first_hundred_problems_are_listed_and_all_counted(tmp_path, run):
    write(tmp_path, "raw", (90, 90))
    for name in ("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"):
        rewrite_shard(tmp_path, name, [example | {"label": 7} for example in examples_of(tmp_path, name)])
    code, lines, error = run(tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 180 problems in 2 of 3 shards")
    assert len(lines) == 1 + 100 + 1 + 1
    assert lines[1].startswith("train-00000-of-00002.tfrecord, record 0, byte offset 0: label 7 is not in 0..3")
    assert lines[100].startswith("train-00001-of-00002.tfrecord, record 9, byte offset ")
    assert lines[101] == "and 80 more"


@pytest.mark.parametrize(
    "name",
    [
        "train-00003-of-00005.tfrecord",
        "train-00003-of-00005.tfrecord.offsets",
        "train-00000-of-00003.tfrecord.receipt.json",
        "train-00000-of-00003.tfrecord.bak",
        "more.TFRecords",
        "test-copy",
    ],
)
def test_a_file_that_others_would_read_as_a_shard_is_a_problem(name, tmp_path, run):
    write(tmp_path)
    (tmp_path / name).write_bytes(b"x")
    code, lines, error = run(tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 1 problem in the other files")
    assert lines[1].startswith(f"{name}: is not in the manifest; ")


def test_other_files_are_a_note(tmp_path, run):
    write(tmp_path)
    (tmp_path / "sidecars").mkdir(exist_ok=True)
    for name in (
        "notes.txt",
        ".hidden",
        "trained",
        "sidecars/crcs.old",
        ".train-00003-of-00005.tfrecord.tmp-0123456789abcdef",
    ):
        (tmp_path / name).write_bytes(b"x")
    code, lines, _ = run(tmp_path)
    assert code == 0
    assert re.fullmatch(OK, lines[1])
    assert lines[2] == (
        "note: 1 file left by a killed conversion (.train-00003-of-00005.tfrecord.tmp-0123456789abcdef)"
    )
    assert lines[3] == "note: 4 files that the data set does not have (.hidden, notes.txt, sidecars/crcs.old, ...)"
    assert len(lines) == 4


def test_the_card_is_compared_with_the_manifest_and_with_what_was_written(tmp_path, run):
    made, other = write(tmp_path / "made"), write(tmp_path / "other", counts=(3, 3, 3))
    path = tmp_path / "made" / naming.CARD
    for name, content in (("made", made), ("other", other)):
        assert write_card(path_of(str(tmp_path / name)), "a", [], facts_of_manifest(content)) is None
    card = path.read_bytes()
    code, lines, _ = run(tmp_path / "made")
    assert (code, len(lines)) == (0, 2)
    path.write_bytes((tmp_path / "other" / naming.CARD).read_bytes())
    code, lines, error = run(tmp_path / "made")
    assert (code, error) == (1, f"{tmp_path / 'made'}: 1 problem in the other files")
    assert lines[1].startswith("card.html: belongs to another data set: ")
    path.write_bytes(card.replace(b"class 1", b"class 7", 1))
    assert run(tmp_path / "made")[1][1].startswith("card.html: was altered: ")
    path.write_bytes(b"x")
    assert run(tmp_path / "made")[1][1].startswith("card.html: is not a card ")
    path.write_bytes(card[: card.rindex(b"<!--") - 1])  # the end is cut off
    assert run(tmp_path / "made")[1][1].startswith("card.html: was altered: ")


def test_the_report_is_json(tmp_path, run):
    write(tmp_path / "made")
    flip(tmp_path / "made" / "train-00000-of-00003.tfrecord", 0)
    code, lines, _ = run(tmp_path / "made", f"--report={tmp_path / 'report.json'}")
    assert code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["problems"] == [lines[1]]
    assert (report["num_problems"], report["bad_shards"], report["records"]) == (1, 1, 22)
    code, _, error = run(tmp_path / "made", f"--report={tmp_path / 'gone' / 'report.json'}")
    assert code == 1
    assert "give --report=FILE" in error


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{made}/manifest.json"], 1, "is a file, not a data set; name the folder that holds manifest.json"),
        ([], 2, "DATA_DIR is missing"),
        ([""], 2, "DATA_DIR='': must be the folder of a data set"),
        (["/"], 1, "/manifest.json: no manifest, so / is not a data set"),
        (["{made}", "more"], 2, "unexpected argument 'more'"),
        (["{made}", "--runner=FnApiRuner"], 2, "did you mean 'FnApiRunner'"),
        (["{made}", "--report=ftp://x"], 2, "must be a local path, or one of"),
    ],
)
def test_what_cannot_work_is_one_clear_error(arguments, code, message, tmp_path, run):
    write(tmp_path / "made")
    arguments = [a.format(made=tmp_path / "made") for a in arguments]
    found, lines, error = run(*arguments)
    assert found == code
    assert re.search(message, error)
    assert lines == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in_memory", "multi_processing"])
def test_ctrl_c_ends_it_with_one_line(mode, tmp_path):
    write(tmp_path, "raw", (1,) * 3000)
    flags = [f"--direct_running_mode={mode}", "--direct_num_workers=2"]
    done = forked.Process(["-m", "beam_jobs.validate", tmp_path, *flags])
    assert "checking 3,004 records in 3,001 shards" in done.stdout.readline()
    time.sleep(1)
    done.send_signal(signal.SIGINT)
    _, err = done.communicate(timeout=30)
    assert (done.returncode, err) == (130, "beam_jobs.validate: interrupted\n")


def test_help_loads_neither_beam_nor_tensorflow():
    program = (
        "import sys\nfrom beam_jobs.validate import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('apache_beam', 'tensorflow', 'sklearn') if m in sys.modules])"
    )
    done = forked.fresh(["-c", program])
    assert done.stdout.startswith("usage: beam_jobs.validate")
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--deep" in done.stdout


def forge(folder, column, change, split="train"):
    """Changes the values of a column, and its CRC32C in the manifest and in the file's name with them."""
    made = manifests.load(folder)
    path = folder / naming.column_name(split, column, made.columns[column].files[split])
    values = np.load(path)
    change(values)
    np.save(path, values)
    crc = f"{crc32c.crc32c(path.read_bytes()):08x}"
    forged = path.rename(folder / naming.column_name(split, column, crc))
    edit(folder, lambda content: content["columns"][column]["files"].update({split: crc}))
    return forged.relative_to(folder).as_posix()


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_was_forged_with_its_crc_is_not_what_the_records_have(kind, tmp_path, run):
    write(tmp_path, kind)
    index.main([str(tmp_path), "--add_columns=records"])
    assert run("--deep", tmp_path)[0] == 0
    before = np.load(next((tmp_path / "columns").glob("train.label.*.npy"))).tolist()

    def change(values):
        values[[7, 9]] = (values[[7, 9]] + 1) % 4

    file = forge(tmp_path, "label", change)
    assert run(tmp_path)[0] == 0  # the file is that of the manifest
    code, lines, error = run("--deep", tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 1 problem in 1 of 4 shards")
    shard = f"train-00001-of-00003.tfrecord{'.gz' if kind == 'gzip' else ''}"
    assert lines[1] == (
        f"{file}: has {(before[7] + 1) % 4} for record 1 of {shard}, which has {before[7]} (2 records differ); "
        "if an earlier release added it from a file or function of yours, add it again"
    )


@pytest.mark.parametrize("column", some_slow(["bytes", "height", "coarse"], ["height", "coarse"]))
def test_columns_of_sizes_and_of_other_features_are_compared_too(column, tmp_path, run):
    write(tmp_path, "png")
    index.main([str(tmp_path), "--add_columns=records"])

    def change(values):
        values[-1] += 1

    file = forge(tmp_path, column, change)
    code, lines, _ = run("--deep", tmp_path)
    assert code == 1
    assert lines[1].startswith(f"{file}: has ")
    assert " for record 6 of train-00002-of-00003.tfrecord, which has " in lines[1]


def test_columns_of_the_users_own_may_differ_from_features_of_their_names(tmp_path, run):
    data = tmp_path / "data"
    write(data, "png")
    index.main([str(data), "--add_columns=records"])
    function = tmp_path / "cols.py"
    function.write_text("def clean(record):\n    return {'label': 3, 'height': 1.5, 'bytes': len(record)}\n")
    index.main([str(data), f"--add_columns={function}:clean"])
    assert [name for name, column in manifests.load(data).columns.items() if column.is_own] == [
        "bytes",
        "height",
        "label",
    ]
    assert run("--deep", data)[0] == 0

    def change(values):
        values[-1] += 1

    forge(data, "width", change)  # is still that of the records
    assert run("--deep", data)[0] == 1
    index.main([str(data), "--add_columns=records"])
    assert run("--deep", data)[0] == 0
    forge(data, "label", change)
    assert run("--deep", data)[0] == 1


def test_shards_in_folders_below_are_found_by_a_deep_check(tmp_path, run):
    write(tmp_path)
    shard = tmp_path / "train-00000-of-00003.tfrecord"
    for folder in ("old", "other", ".trash", "old/deeper"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / shard.name).write_bytes(shard.read_bytes())
    (tmp_path / "other" / naming.MANIFEST).write_bytes(b"{}")  # a data set of its own
    (tmp_path / "old" / "notes.txt").write_text("")
    assert run(tmp_path)[0] == 0
    code, lines, error = run("--deep", tmp_path)
    assert (code, error) == (1, f"{tmp_path}: 2 problems in the other files")
    assert [line.partition(":")[0] for line in lines[1:3]] == [f"old/deeper/{shard.name}", f"old/{shard.name}"]


def test_a_card_that_is_gone_is_missed_by_a_deep_check_and_written_by_the_conversion(tmp_path, run, capfd):
    source, data = tmp_path / "photos", tmp_path / "data"
    for name in ("a", "b"):
        (source / name).mkdir(parents=True)
        (source / name / "0.png").write_bytes(png(pixels_of(0, "raw")))
    arguments = ["--dataset=image_folder", f"--source={source}", f"--data_dir={data}", "--direct_num_workers=1"]
    convert.main(arguments)
    assert run("--deep", data)[0] == 0
    (data / naming.CARD).unlink()
    assert run(data)[0] == 0
    code, lines, _ = run("--deep", data)
    assert code == 1
    assert lines[1].startswith("card.html: is missing; ")
    convert.main(arguments)
    assert "card.html was missing, and is written again" in capfd.readouterr().out
    assert run("--deep", data)[0] == 0
