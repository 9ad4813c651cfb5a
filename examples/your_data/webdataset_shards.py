"""Two tar shards of WebDataset: an image, its class and a JSON file about it, sample after sample."""

import io
import json
import pathlib
import subprocess
import tarfile

import numpy as np
import PIL.Image

from stepfeed import input_fn

draw = np.random.default_rng(0)
pathlib.Path("shards").mkdir()
for shard in range(2):
    with tarfile.open(f"shards/train-{shard:06}.tar", "w") as tar:
        for number in range(300 * shard, 300 * shard + 300):
            stream = io.BytesIO()
            pixels = draw.integers(0, 100, (40, 40, 3), np.uint8)
            pixels[:, :, number % 3] += 120
            PIL.Image.fromarray(pixels).save(stream, "JPEG")
            about = {"camera": f"c{number % 4}", "number": number}
            for ending, content in {
                "jpg": stream.getvalue(),
                "cls": str(number % 3).encode(),
                "json": json.dumps(about).encode(),
            }.items():
                member = tarfile.TarInfo(f"{number:06}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))

convert = (
    "stepfeed convert --dataset=webdataset --source=shards/train-*.tar --data_dir=data --keep_columns=camera,number"
)
subprocess.run(convert.split(), check=True)
train = "stepfeed train data --model_dir=run --model=lenet --train_steps=30 --train_split=train[:500]"
subprocess.run([*train.split(), "--eval_split=train[500:]"], check=True)

# The fields of the JSON files are features, and columns to select records by.
seen = []
batches = input_fn(
    "data", global_batch_size=50, training=False, features=("number",), where="camera == 'c1'", remainder="pad"
)
for features, labels, weights in batches.as_numpy_iterator():
    real = weights > 0
    seen += features["number"][real].tolist()
    assert (labels[real] == features["number"][real] % 3).all()
print(f"{len(seen)} samples of camera c1")
assert sorted(seen) == list(range(1, 600, 4))
