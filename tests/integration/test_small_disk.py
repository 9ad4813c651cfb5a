"""A full disk and a folder that is mounted read-only, met by every command that writes: one line says what to do."""

import os
import re
import shutil

import numpy as np
import PIL.Image
import pytest

from tests.helpers import forked

FULL, READ_ONLY = "full", "read-only"
CANNOT = 77  # exit code where the system mounts nothing for its users
# Mounts a small file system over a folder, in a namespace of this process alone, and runs a command there.
MOUNTED = """
import ctypes, os, runpy, shutil, sys
kind, place, filled = sys.argv[1:4]
NEWNS, NEWUSER, RDONLY, REMOUNT, REC, PRIVATE = 0x20000, 0x10000000, 1, 32, 0x4000, 1 << 18
libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
if libc.unshare(NEWUSER | NEWNS):
    sys.exit(77)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
libc.mount(b"none", b"/", None, REC | PRIVATE, None)
if libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, b"size=1m"):
    sys.exit(77)
shutil.copytree(filled, place, dirs_exist_ok=True)
if kind == "full":
    try:
        with open(f"{place}/filler", "wb", 0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        pass
elif libc.mount(b"none", place.encode(), None, REMOUNT | RDONLY, None):
    sys.exit(77)
before = sorted(os.path.join(*one) for top, _, names in os.walk(place) for one in [(top, name) for name in names])
sys.argv = sys.argv[4:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    left = sorted(os.path.join(*one) for top, _, names in os.walk(place) for one in [(top, name) for name in names])
    print("left:", *[os.path.relpath(path, place) for path in left if path not in before])
    print("gone:", *[os.path.relpath(path, place) for path in before if path not in left])
"""
REASONS = {FULL: "No space left on device|has 0 free", READ_ONLY: "[Rr]ead-only|is not writable"}
# By command: its arguments, and what it names where the disk is full and where it is mounted read-only, if it is asked.
COMMANDS = {
    "convert": ("beam_jobs.convert --dataset=digits --data_dir={small}/new", "{small}/new", "{small}/new"),
    "compressed": (
        "beam_jobs.convert --dataset=digits --compression=GZIP --data_dir={small}/new",
        r"{small}/new/\S+\.gz",
        None,
    ),
    "append": (
        "beam_jobs.convert --append --dataset=image_folder --source={more} --data_dir={small}/photos",
        "{small}/photos",
        "{small}/photos",
    ),
    "edit": ("beam_jobs.edit {small}/photos --delete=class0/0.png", "{small}/photos", "{small}/photos"),
    "overwrite": (
        "beam_jobs.convert --overwrite --dataset=digits --data_dir={small}/photos",
        None,
        "--data_dir={small}/photos",
    ),
    "report": ("beam_jobs.validate {small}/photos --report={small}/report.json", None, "{small}/report.json"),
    "card": ("beam_jobs.validate {small}/photos --card", None, "{small}/photos: card.html"),
    "columns": ("pipeline.index {small}/photos --add_columns=records", None, "{small}/photos"),
    "picture": ("pipeline.inspect {digits} --png={small}/sheet.png", None, "--png={small}/sheet.png"),
    "resume": (
        "trainer.run --data_dir={digits} --model_dir={small}/records --model=softmax_regression --train_steps=1",
        None,
        "--model_dir={small}/records",
    ),
    "train": (
        "trainer.run --data_dir={digits} --model_dir={small}/run --model=softmax_regression --train_steps=1",
        r"the disk is full \({small}/run/\S+",
        "--model_dir={small}/run",
    ),
    "predict": (
        "trainer.predict {run} {more} --output={small}/a.csv",
        "--output={small}/a.csv",
        "--output={small}/a.csv",
    ),
    "export": (
        "trainer.export --model_dir={run} --output={small}/out --format=keras",
        "--output={small}/out",
        "--output={small}/out",
    ),
    "evaluate": (
        "trainer.evaluate --model_dir={run} --output={small}/out",
        "--output={small}/out",
        "--output={small}/out",
    ),
    "index": (
        "pipeline.index {small}/records --feature_map=image:image,label:label,key:key --image_shape=28x28x1",
        r"{small}/records/\S+",
        "{small}/records",
    ),
}
CASES = [
    (kind, name)
    for name, (_, *places) in COMMANDS.items()
    for kind, text in zip(REASONS, places, strict=True)
    if text is not None
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, digits):
    """Folders by name: what the small disk holds, a run, more images, and the data set of digits."""
    folder = tmp_path_factory.mktemp("made")
    for name, numbers in (("photos", range(6)), ("more", range(6, 9))):
        for number in numbers:
            path = folder / name / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(np.full((28, 28), number, np.uint8)).save(path)
    (folder / "held" / "records").mkdir(parents=True)
    (record,) = list(digits.glob("test-*.tfrecord"))[:1]
    shutil.copy(record, folder / "held" / "records" / "train.tfrecord")
    source = f"--source={folder / 'photos'}"
    flags = ["--dataset=image_folder", source, f"--data_dir={folder / 'held' / 'photos'}"]
    for module, arguments in (
        ("beam_jobs.convert", flags),
        (
            "trainer.run",
            [f"--data_dir={digits}", f"--model_dir={folder}/run", "--model=softmax_regression", "--train_steps=1"],
        ),
    ):
        forked.output(["-m", module, *arguments])
    return {"held": folder / "held", "run": folder / "run", "more": folder / "more", "digits": digits}


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.quick(5)
def test_one_line_says_what_to_do(kind, name, made, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    arguments, *places = (text and text.format(small=small, **made) for text in COMMANDS[name])
    program = ["-c", MOUNTED, kind, small, made["held"], *arguments.split()]
    done = forked.run(program, cwd=tmp_path)
    if done.returncode == CANNOT:
        pytest.skip("this system mounts no tmpfs for its users")
    assert done.returncode in (1, 2), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    module, line = arguments.split()[0], done.stderr.splitlines()[-1]
    place = dict(zip(REASONS, places, strict=True))[kind]
    assert re.match(rf"{module}: (--data_dir=|DATA_DIR=)?{place}[:;].*({REASONS[kind]})", line), line
    left, gone = re.findall(r"^(?:left|gone):(.*)$", done.stdout, re.MULTILINE)
    assert gone == ""
    beside = {"train": r"run/\S+"}.get(name, r"$")
    assert all(re.fullmatch(beside, path) for path in left.split()), left
    assert os.listdir(small) == []  # what was mounted is gone
