"""Data that change: a run is killed, rows are appended, it resumes with them, is killed again, and records are deleted.

An uninterrupted run trains on the same versions. Both end with the same weights, to the bit.
"""

import pathlib
import re
import shutil
import subprocess

import numpy as np
import PIL.Image
import tensorflow as tf

TRAIN = "--model=lenet --global_batch_size=20 --augment=shift --checkpoint_every=4 --log_every=1 --eval_split=none"


def write(folder: str, numbers: range) -> None:
    """Writes images in a folder for each of two classes."""
    for number in numbers:
        path = pathlib.Path(folder, "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 128, (28, 28), np.uint8) + np.uint8(120 * (number % 2))
        PIL.Image.fromarray(pixels).save(path)


def stepfeed(command: str) -> str:
    """Runs a command to its end; returns what it printed."""
    return subprocess.run(["stepfeed", *command.split()], check=True, stdout=subprocess.PIPE, text=True).stdout


def killed(command: str, step: int) -> None:
    """Runs a command and kills it, as `kill -9` does, once it has printed the line of a step."""
    with subprocess.Popen(["stepfeed", *command.split()], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(re.match(rf"step {step}\b", line) for line in process.stdout), "it ended before"
        process.kill()


def weights(run: str, step: int) -> dict[str, bytes]:
    """Returns the tensors of a checkpoint: weights, the optimizer's slots, the step."""
    reader = tf.train.load_checkpoint(f"{run}/ckpt-{step}")
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


write("photos", range(100))
write("more", range(100, 160))
stepfeed("convert --dataset=image_folder --source=photos --data_dir=data")
shutil.copytree("data", "still")

# Killed; with 60 more rows it resumes: to the end of its epoch on version 1, then on version 2. Killed there again.
train = f"train --model_dir=run --train_steps=400 {TRAIN}"
killed(f"{train} --data_dir=data", step=10)
stepfeed("convert --dataset=image_folder --source=more --data_dir=data --append")
killed(f"{train} --data_dir=data@2", step=200)
said = stepfeed(f"{train} --data_dir=data")
moved = int(re.findall(r"trains on version 1, from step (\d+) on version 2", said)[0])
print(f"moved to version 2 at step {moved}")

# Two records are deleted. A run that has seen them refuses to resume as if nothing had happened, unless told to.
stepfeed("edit data --delete=a/0.png,b/101.png")
train = train.replace("400", "600")
refused = subprocess.run(["stepfeed", *train.split()], capture_output=True, text=True, check=False)
print(refused.stderr)
assert refused.returncode
assert "version 1 held records that were deleted" in refused.stderr
killed(f"{train} --data_dir=data --allow_order_change", step=480)
stepfeed(f"{train} --data_dir=data")

# The same versions and moves without a kill.
train = train.replace("model_dir=run", "model_dir=undisturbed")
stepfeed(f"{train.replace('600', str(moved))} --data_dir=still")
stepfeed("convert --dataset=image_folder --source=more --data_dir=still --append")
stepfeed(f"{train.replace('600', '400')} --data_dir=still@2")
stepfeed("edit still --delete=a/0.png,b/101.png")
stepfeed(f"{train} --data_dir=still --allow_order_change")
found = weights("run", 600)
print(f"{len(found)} tensors of {sum(map(len, found.values())):,} bytes are the same")
assert found == weights("undisturbed", 600)
