"""A full disk and a folder that is mounted read-only, met by every command that writes: one line says what to do."""

import os
import re
import shutil

import numpy as np
import PIL.Image
import pytest

from tests import forked

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
OWN = (
    "writes its version into the data set's own folder; make it writable, or copy the data set to a folder that is, "
    "and give that"
)
ROOM, MOUNT = "No space left on device; make room", "Read-only file system; name another place, or mount it writable"
# By command: its arguments, and what it says of a full disk and of a mount.
COMMANDS = {
    "convert": (
        "beam_jobs.convert --dataset=digits --data_dir={small}/new",
        r"{small}/new: the data set takes [\d,]+ bytes, but its disk has 0 free; make room",
        "--data_dir={small}/new: {small} is mounted read-only; choose another, or make it writable",
    ),
    "compressed": (
        "beam_jobs.convert --dataset=digits --compression=GZIP --data_dir={small}/new",
        rf"{{small}}/new/\S+\.gz: cannot be written: {ROOM}",
        None,
    ),
    "append": (
        "beam_jobs.convert --append --dataset=image_folder --source={more} --data_dir={small}/photos",
        "{small}/photos: the new version takes [0-9,]+ bytes, but its disk has 0 free; make room",
        f"--data_dir={{small}}/photos: {{small}}/photos is mounted read-only, and an append {OWN}",
    ),
    "edit": (
        "beam_jobs.edit {small}/photos --delete=class0/0.png",
        "{small}/photos: the new version takes [0-9,]+ bytes, but its disk has 0 free; make room",
        f"DATA_DIR={{small}}/photos: {{small}}/photos is mounted read-only, and an edit {OWN}",
    ),
    "overwrite": (
        "beam_jobs.convert --overwrite --dataset=digits --data_dir={small}/photos",
        None,
        "--data_dir={small}/photos: {small}/photos is mounted read-only; choose another, or make it writable",
    ),
    "report": (
        "beam_jobs.validate {small}/photos --report={small}/report.json",
        None,
        f"{{small}}/report.json: cannot be written: {MOUNT}",
    ),
    "card": (
        "beam_jobs.validate {small}/photos --card",
        None,
        f"{{small}}/photos: card.html: cannot be written: {MOUNT}",
    ),
    "columns": (
        "pipeline.index {small}/photos --add_columns=records",
        None,
        "{small}/photos: cannot be written to: Read-only file system; columns lie beside the records: make the folder "
        "writable, or copy the data set to one that is",
    ),
    "picture": (
        "pipeline.inspect {digits} --png={small}/sheet.png",
        None,
        f"--png={{small}}/sheet.png: cannot be written: {MOUNT}",
    ),
    "resume": (
        "trainer.run --data_dir={digits} --model_dir={small}/records --model=softmax_regression --train_steps=1",
        None,
        "--model_dir={small}/records: is not writable; make it so, or name another folder (to continue a run: a copy)",
    ),
    "train": (
        "trainer.run --data_dir={digits} --model_dir={small}/run --model=softmax_regression --train_steps=1",
        r"the disk is full \({small}/run/\S+; No space left on device\); make room and rerun the same command",
        f"--model_dir={{small}}/run: cannot be created: {MOUNT}",
    ),
    "predict": (
        "trainer.predict {run} {more} --output={small}/a.csv",
        f"--output={{small}}/a.csv: cannot be written: {ROOM}",
        f"--output={{small}}/a.csv: cannot be written: {MOUNT}",
    ),
    "export": (
        "trainer.export --model_dir={run} --output={small}/out --format=keras",
        f"--output={{small}}/out: cannot be written: {ROOM}",
        f"--output={{small}}/out: cannot be written: {MOUNT}",
    ),
    "evaluate": (
        "trainer.evaluate --model_dir={run} --output={small}/out",
        f"--output={{small}}/out: cannot be written to: {ROOM}",
        f"--output={{small}}/out: cannot be created: {MOUNT}",
    ),
    "index": (
        "pipeline.index {small}/records --feature_map=image:image,label:label,key:key --image_shape=28x28x1",
        rf"{{small}}/records/\S+: cannot be written: {ROOM}",
        "{small}/records: cannot be written to: Read-only file system; link its files into a folder of your own "
        "(ln -s), and index that",
    ),
}
CASES = [
    (kind, name)
    for name, (_, *said) in COMMANDS.items()
    for kind, text in zip((FULL, READ_ONLY), said, strict=True)
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
        done = forked.run(["-m", module, *arguments])
        assert done.returncode == 0, done.stderr
    return {"held": folder / "held", "run": folder / "run", "more": folder / "more", "digits": digits}


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.quick(5)
def test_one_line_says_what_to_do(kind, name, made, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    arguments, full, mount = (text and text.format(small=small, **made) for text in COMMANDS[name])
    program = ["-c", MOUNTED, kind, small, made["held"], *arguments.split()]
    done = forked.run(program, cwd=tmp_path)
    if done.returncode == CANNOT:
        pytest.skip("this system mounts no tmpfs for its users")
    assert done.returncode in (1, 2), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    module, line = arguments.split()[0], done.stderr.splitlines()[-1]
    said = full if kind == FULL else re.escape(mount)
    assert re.fullmatch(f"{re.escape(module)}: {said}", line), line
    left, gone = re.findall(r"^(?:left|gone):(.*)$", done.stdout, re.MULTILINE)
    assert gone == ""
    beside = {"train": r"run/\S+"}.get(name, r"$")
    assert all(re.fullmatch(beside, path) for path in left.split()), left
    assert os.listdir(small) == []  # what was mounted is gone
