"""The exact text of every command: its output, its usage errors and its errors about data, one golden file each.

The files are beside this one, in __snapshots__/test_wording. After a change of wording:

    pytest tests/integration/test_wording.py --snapshot-update

Other tests assert facts alone: exit codes, file names, record numbers.
"""

from __future__ import annotations

import pathlib
import re
import shutil

import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import validated
from tests.helpers.datasets import flip, write_dataset
from tests.helpers.snapshots import Text

BATCH = "--global_batch_size=8"
TABLE = "--dataset=image_table --source={tmp}/photos.csv"
PARQUET = "--dataset=parquet --source={tmp}/animals.parquet --data_dir={tmp}/out"
SHARD = "train-00001-of-00002.tfrecord"
# What a run, a machine or a release of a library decides.
VARYING = [
    (r" \(pip install tensorboard\)$", ""),  # if it is not installed
    (r"\b\d+(\.\d+)? (s|ms)\b", "N s"),
    (r"[\d,.]+ (MB/s|examples/s(ec)?|records/s)", r"N \1"),
    (r"\d+\.\d+ sec/batch", "N sec/batch"),
    (r"(loss|accuracy) = \d+\.\d+", r"\1 = N"),
    (r"\b\d\.\d{4}  \d+\.\d\d$", "N N"),  # a mistake's probability and loss
    (r"(difference|differs by) [\d.e-]+", r"\1 N"),
    (r"^(\| )(total_loss|gradient norm) .*", r"\1\2 N"),  # of a replay, with the next two
    (r"loss above \S+ = median \S+ (.*) MAD \S+$", r"loss above N = median N \1 MAD N"),
    (r"^(\| )\d+\.\d{4}( {3,}\d+ +\d+ +train#)", r"\1N\2"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r"\b0x[0-9a-f]{8}\b|\b(?=[a-f]*\d)[0-9a-f]{8}\b", "CRC32C"),
    (r"\(version [\d.]+\)", "(version N)"),
]
CASES = {
    "beam_jobs.convert": {
        "digits": "--dataset=digits --data_dir={tmp}/digits",
        "the same again": "--dataset=digits --data_dir={tmp}/digits",
        "other options": "--dataset=digits --data_dir={tmp}/digits --num_shards=3",
        "nothing given": "",
        "an unknown flag": "--dataset=digits --data_dir={tmp}/out --num_shard=2",
        "an unknown data set": "--dataset=digit --data_dir={tmp}/out",
        "several mistakes": "--dataset=digits --num_shard=2 --channels=2 --seed=x --runer=FlinkRunner --passes=3",
        "a bad number of shards": "--dataset=digits --data_dir={tmp}/out --num_shards=0",
        "a bad encoding": "--dataset=digits --data_dir={tmp}/out --image_encoding=gif",
        "an unknown split": "--dataset=digits --data_dir={tmp}/out --num_shards=tran:2",
        "no source": "--dataset=mnist --source={tmp}/nothing --data_dir={tmp}/out",
        "a source that is not MNIST": "--dataset=mnist --source={tmp} --data_dir={tmp}/out",
        "no Parquet file": "--dataset=parquet --source={tmp}/made/*.parquet --data_dir={tmp}/out",
        "no such image column": "{parquet} --image_column=imgs",
        "no such label column": "{parquet}",
        "a label of another type": "{parquet} --label_column=weight",
        "an image column to keep": "{parquet} --label_column=animal --keep_columns=img",
        "a Parquet file that was cut": "--dataset=parquet --source={tmp}/cut.parquet --data_dir={tmp}/out",
        "a table of images": "{table} --label_column=animal --max_rejects=1 --data_dir={tmp}/photos",
        "no such column": "{table} --label_column=animals --data_dir={tmp}/out",
        "no column of a usual name": "{table} --data_dir={tmp}/out",
        "images that lie elsewhere": "{table} --label_column=animal --image_dir={tmp}/files --data_dir={tmp}/out",
        "a data_dir that is a file": "--dataset=digits --data_dir={tmp}/file",
        "a corrupt source": "--dataset=tfrecord --source={tmp}/corrupt --data_dir={tmp}/out",
        "resharded": "--dataset=tfrecord --source={tmp}/made --data_dir={tmp}/again --num_shards=2",
    },
    "beam_jobs.validate": {
        "a whole data set": "{tmp}/valid",
        "deep": "{tmp}/valid --deep",
        "the same data set": "{tmp}/valid --deep --compare={tmp}/valid",
        "drift from nothing": "{tmp}/valid --fail_on=drift",
        "no manifest": "{tmp}/nothing",
        "a corrupt record": "{tmp}/corrupt",
        "a shard that was cut": "{tmp}/cut",
        "a missing shard": "{tmp}/missing",
        "a manifest that is not JSON": "{tmp}/bad_manifest",
        "an unknown flag": "{tmp}/made --dep",
    },
    "trainer.run": {
        "a run": "--data_dir={tmp}/made --model_dir={tmp}/run --train_steps=6 --log_every=5 " + BATCH,
        "the same again": "--data_dir={tmp}/made --model_dir={tmp}/run --train_steps=6 " + BATCH,
        "a run of epochs": "--data_dir={tmp}/made --model_dir={tmp}/epochs --epochs=2 --eval_every=1epoch " + BATCH,
        "another order": "--data_dir={tmp}/made --model_dir={tmp}/run --train_steps=9 --seed=1 " + BATCH,
        "another model": "--data_dir={tmp}/made --model_dir={tmp}/run --train_steps=9 --optimizer=adam " + BATCH,
        "nothing given": "",
        "an unknown flag": "--data_dir={tmp}/made --model_dir={tmp}/out --modle=mlp",
        "an unknown model": "--data_dir={tmp}/made --model_dir={tmp}/out --model=lent",
        "several mistakes": "--model_dir={tmp}/out --lr=0.1 --max_steps=5 --seed=x --global_batch_size=0 --sync "
        "--epochs=2 --train_steps=7 --profile",
        "a value that is not a number": "--data_dir={tmp}/made --model_dir={tmp}/out --train_steps=many",
        "a value that is not an interval": "--data_dir={tmp}/made --model_dir={tmp}/out --eval_every=1epcoh",
        "two clocks": "--data_dir={tmp}/made --model_dir={tmp}/out --checkpoint_every=30s --checkpoint_secs=60",
        "no manifest": "--data_dir={tmp}/nothing --model_dir={tmp}/out",
        "no such split": "--data_dir={tmp}/made --model_dir={tmp}/out --eval_split=tset",
        "a batch that does not divide": "--data_dir={tmp}/made --model_dir={tmp}/out --strategy=mirrored"
        " --num_replicas=3 " + BATCH,
        "a model_dir that is a file": "--data_dir={tmp}/made --model_dir={tmp}/file --train_steps=5 " + BATCH,
        "a model_dir that is a URL": "--data_dir={tmp}/made --model_dir=gs://bucket/run",
        "metrics to a device": "--data_dir={tmp}/made --model_dir={tmp}/run --metrics_jsonl=/dev/null --train_steps=6 "
        + BATCH,
        "a seed too large": "--data_dir={tmp}/made --model_dir={tmp}/out --seed=5000000000",
        "nothing to evaluate": "--data_dir={tmp}/made --model_dir={tmp}/out --eval_every=5 --eval_split=none",
        "nothing to rank": "--data_dir={tmp}/made --model_dir={tmp}/out --best_metric=loss",
        "nothing for TensorBoard": "--data_dir={tmp}/made --model_dir={tmp}/out --image_every=5 --summary_every=0",
        "two config files": "--config=a.yaml --config=b.yaml",
        "a recipe that does not fit": "--data_dir={tmp}/made --model_dir={tmp}/out --train_steps=5 "
        "--augment=random_crop(size=2) " + BATCH,
        "an unknown recipe": "--data_dir={tmp}/made --model_dir={tmp}/out --augment=shfit " + BATCH,
        "images too small": "--data_dir={tmp}/made --model_dir={tmp}/out --model=lenet --train_steps=5 " + BATCH,
        "too little memory": "--data_dir={tmp}/made --model_dir={tmp}/out --shuffle_bytes=100 " + BATCH,
        "no full batch": "--data_dir={tmp}/made --model_dir={tmp}/out --remainder=drop --global_batch_size=2000",
        "replicas of workers": "--data_dir={tmp}/made --model_dir={tmp}/out --strategy=multiworker --num_replicas=2",
        "a shard that was cut": "--data_dir={tmp}/cut --model_dir={tmp}/out --train_steps=5 " + BATCH,
        "a corrupt record": "--data_dir={tmp}/corrupt --model_dir={tmp}/out2 --train_steps=5 " + BATCH,
    },
    "trainer.evaluate": {
        "a checkpoint": "--model_dir={tmp}/trained",
        "its pictures": "--model_dir={tmp}/trained --output={tmp}/evaluation --mistakes=2",
        "nothing given": "",
        "no run": "--model_dir={tmp}/nothing",
        "no such checkpoint": "--model_dir={tmp}/trained --checkpoint=7",
        "a checkpoint of another name": "--model_dir={tmp}/trained --checkpoint=newest",
        "no average": "--model_dir={tmp}/trained --weights=ema",
        "other weights": "--model_dir={tmp}/trained --weights=mean",
        "no such split": "--model_dir={tmp}/trained --split=tset",
        "all and one": "--model_dir={tmp}/trained --continuous --checkpoint=6",
        "a corrupt record": "--model_dir={tmp}/trained --data_dir={tmp}/corrupt --split=train",
        "an output that is a file": "--model_dir={tmp}/trained --output={tmp}/file",
    },
    "trainer.replay": {
        "a step": "--model_dir={tmp}/trained --step=2 --from_start --rows=2",
        "the bits": "--model_dir={tmp}/trained --verify=0:6",
        "nothing given": "",
        "no run": "--model_dir={tmp}/nothing --step=2",
        "a data set": "--model_dir={tmp}/made --step=2",
        "before the first checkpoint": "--model_dir={tmp}/trained --step=2",
        "after the end": "--model_dir={tmp}/trained --step=7",
        "one checkpoint": "--model_dir={tmp}/trained --verify",
        "no such checkpoints": "--model_dir={tmp}/trained --verify=2:6",
        "other data": "--model_dir={tmp}/trained --data_dir={tmp}/valid --step=2 --from_start",
        "no data": "--model_dir={tmp}/trained --data_dir={tmp}/nothing --step=2 --from_start",
        "both": "--model_dir={tmp}/trained --step=2 --verify",
    },
    "trainer.export": {
        "two formats": "--model_dir={tmp}/trained --output={tmp}/exported --format=keras,stablehlo",
        "the same again": "--model_dir={tmp}/trained --output={tmp}/exported",
        "an unknown format": "--model_dir={tmp}/trained --output={tmp}/new --format=saved_modle",
        "no output": "--model_dir={tmp}/trained",
        "no run": "--model_dir={tmp}/nothing --output={tmp}/new",
        "a tolerance of nothing": "--model_dir={tmp}/trained --output={tmp}/new --tolerance=0",
        "numbers too far apart": "--model_dir={tmp}/trained --output={tmp}/new --tolerance=1e-15 --format=stablehlo",
    },
    "trainer.launch": {
        "nothing given": "",
        "several mistakes": "--num_worker=2 --elastic=4 --lr=1 -- --data_dir={tmp}/made --sed=1 --task_index=2",
        "a flag of the trainer": "--num_workers=2 --seed=3 -- --data_dir={tmp}/made --model_dir={tmp}/out",
        "a flag of the launcher": "-- --data_dir={tmp}/made --model_dir={tmp}/out --num_workers=2",
        "a strategy of one process": "--num_workers=2 -- --data_dir={tmp}/made --model_dir={tmp}/out "
        "--strategy=mirrored",
        "no parameter server": "-- --data_dir={tmp}/made --model_dir={tmp}/out --strategy=parameter_server",
        "workers that do not divide": "--num_workers=3 -- --data_dir={tmp}/made --model_dir={tmp}/out " + BATCH,
        "no manifest": "--num_workers=2 -- --data_dir={tmp}/nothing --model_dir={tmp}/out " + BATCH,
        "no image": "--target=kubernetes -- --data_dir=/data --model_dir=/runs " + BATCH,
        "a flag of another scheduler": "--target=slurm --image=a/b -- --data_dir=/data --model_dir=/runs " + BATCH,
        "a page with Slurm": "--target=slurm --page -- --data_dir=/data --model_dir=/runs " + BATCH,
    },
    "trainer.watch": {
        "nothing given": "",
        "a file": "{tmp}/file",
        "a store": "s3://bucket/run",
        "an unknown flag": "{tmp}/trained --prot=8420",
        "no such port": "{tmp}/trained --port=70000",
        "an address of another machine": "{tmp}/trained --host=192.0.2.1 --port=8420",
    },
    "trainer.predict": {
        "nothing given": "",
        "no model": "{tmp}/photo.png",
        "a run and a file": "{tmp}/photo.png --model_dir={tmp}/trained --exported={tmp}/exported",
        "no run": "{tmp}/photo.png --model_dir={tmp}/nothing",
        "no export": "{tmp}/photo.png --exported={tmp}/nothing",
        "no such image": "{tmp}/nothing.png --model_dir={tmp}/trained",
        "a folder without images": "{tmp}/files --model_dir={tmp}/trained",
        "an image that cannot be read": "{tmp}/file --model_dir={tmp}/trained",
        "an output of another name": "{tmp}/photo.png --model_dir={tmp}/trained --output={tmp}/said.txt",
        "records": "{tmp}/files/one.rec --model_dir={tmp}/trained",
        "a data set": "{tmp}/made --split=train --model_dir={tmp}/trained",
        "a split of images": "{tmp}/photo.png --split=train --model_dir={tmp}/trained",
    },
    "pipeline.inspect": {
        "a data set": "{tmp}/made",
        "a contact sheet": "{tmp}/made --png={tmp}/sheet.png",
        "no manifest": "{tmp}/nothing",
        "a picture of another name": "{tmp}/made --png={tmp}/sheet.gif",
        "a flag of the picture alone": "{tmp}/made --augment=shift",
        "a missing shard": "{tmp}/missing",
        "an unknown recipe": "{tmp}/made --png={tmp}/sheet.png --augment=shfit",
        "a step": "{tmp}/made --step=2 --replicas=2 --png={tmp}/step.png " + BATCH,
        "a key": "{tmp}/made --key=train#00003 --replicas=2 " + BATCH,
        "no such key": "{tmp}/made --key=train#3 " + BATCH,
        "no run": "--model_dir={tmp}/nothing --step=2",
        "a step of which run": "{tmp}/made --step=2",
        "nothing given": "",
        "a flag of a step alone": "{tmp}/made --json",
    },
    "pipeline.audit": {
        "a proof": "{tmp}/made --workers=2 " + BATCH,
        "every record, and against another job": "{tmp}/made --workers=2 --exhaustive --against_workers=4 " + BATCH,
        "what is fed": "{tmp}/made --workers=2 --content " + BATCH,
        "no batch size": "{tmp}/made",
        "no manifest": "{tmp}/nothing " + BATCH,
        "replicas that do not divide": "{tmp}/made --workers=3 " + BATCH,
        "a negative epoch": "{tmp}/made --epoch=-1 " + BATCH,
        "no logs": "{tmp}/made --observed={tmp}/nothing",
        "an unknown flag": "{tmp}/made --worker=2 " + BATCH,
    },
    "pipeline.bench": {
        "nothing given": "",
        "no manifest": "{tmp}/nothing",
        "an unknown flag": "{tmp}/made --batch_size=8",
        "no round": "{tmp}/made --rounds=0",
        "no such split": "{tmp}/made --split=tset",
        "an unknown recipe": "{tmp}/made --augment=shfit " + BATCH,
        "replicas that do not divide": "{tmp}/made --replicas=3 " + BATCH,
        "a missing shard": "{tmp}/missing " + BATCH,
        "a corrupt record": "{tmp}/corrupt " + BATCH,
    },
    "pipeline.index": {
        "files": "{tmp}/files --split=train:*.rec",
        "the same again": "{tmp}/files --split=train:*.rec",
        "replaced": "{tmp}/files --split=train:*.rec --overwrite",
        "no split": "{tmp}/untold",
        "no file": "{tmp}/files --split=train:*.tfrecord --overwrite",
        "no folder": "{tmp}/nothing --split=train:*",
        "a manifest of another command": "{tmp}/made --split=train:*.tfrecord --overwrite",
        "a corrupt record": "{tmp}/corrupt_files --split=train:*.rec",
        "a split without files": "{tmp}/files --split=train",
    },
}


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    """A folder of data sets, whole and damaged."""
    folder = tmp_path_factory.mktemp("wording")
    write_dataset(folder / "made", (11, 9))
    validated.write_tfds_files(folder / "made")
    validated.write(folder / "valid")
    for name in ("corrupt", "cut", "missing", "bad_manifest"):
        shutil.copytree(folder / "made", folder / name)
    flip(folder / "corrupt" / SHARD, mask=255)
    (folder / "cut" / SHARD).write_bytes((folder / "cut" / SHARD).read_bytes()[:-10])
    (folder / "missing" / SHARD).unlink()
    (folder / "bad_manifest" / "manifest.json").write_text("{")
    for name, shard in (("files", folder / "made" / SHARD), ("corrupt_files", folder / "corrupt" / SHARD)):
        (folder / name).mkdir()
        shutil.copy(shard, folder / name / "one.rec")
    for name in ("train", "verses"):
        shutil.copytree(folder / "files", folder / "untold" / name)
    (folder / "file").touch()
    PIL.Image.new("RGB", (8, 6)).save(folder / "photo.png")
    rows = [{"img": {"bytes": b"", "path": "0.png"}, "animal": "ape", "weight": 0.5}] * 3
    pq.write_table(pa.Table.from_pylist(rows), folder / "animals.parquet")
    (folder / "photos.csv").write_text("file_name,animal\nphoto.png,ape\ngone.png,ape\n")
    (folder / "cut.parquet").write_bytes((folder / "animals.parquet").read_bytes()[:-9])
    return folder


def said(command, name, arguments, tmp):
    """Returns the exit code and the text of a command, without what varies."""
    known = {"parquet": PARQUET.format(tmp=tmp), "table": TABLE.format(tmp=tmp)}
    code, out, err = command(name, *arguments.format(tmp=tmp, **known).split())
    text = "".join(f"{name}| {line}\n" for name, lines in (("", out), ("!", err)) for line in lines.splitlines())
    text = text.replace(str(tmp), "TMP").replace(str(pathlib.Path.home()), "HOME")
    for pattern, other in VARYING:
        text = re.sub(pattern, other, text, flags=re.MULTILINE)
    return f"exit code {code}\n{text}"


@pytest.mark.parametrize("name", CASES)
def test_wording(name, tmp, command, snapshot, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    if name in ("trainer.evaluate", "trainer.export", "trainer.predict", "trainer.replay"):
        run = f"--data_dir={tmp}/made --model_dir={tmp}/trained --model=mlp --train_steps=6 --ema=0 {BATCH}"
        assert said(command, "trainer.run", run, tmp).startswith("exit code 0")
    text = "\n".join(f"== {case}: {line}\n{said(command, name, line, tmp)}" for case, line in CASES[name].items())
    assert text == snapshot(extension_class=Text)
