"""`trainer.evaluate` of real runs on the digits: once, and alongside a run that trains."""

import json
import re
import shutil
import signal
import time

import numpy as np
import pytest
from PIL import Image

from pipeline import input_fn
from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.index import __main__ as index
from tests.helpers import forked, runs
from tests.helpers.datasets import edit_manifest, write_dataset
from tests.helpers.runs import finish, forget, scalars
from trainer import inference as built
from trainer.checkpoint import reader
from trainer.config.trained import CheckpointFlags

MODELS = """
import keras
import tensorflow as tf
import trainer


def small(shape, classes):
    return keras.Sequential([keras.Input(shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
        keras.layers.Dense(classes)])


def compiled():
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Net(keras.Model):
    \"\"\"Has no output_shape.\"\"\"

    def __init__(self, classes):
        super().__init__()
        self.scale, self.flatten = keras.layers.Rescaling(1 / 255), keras.layers.Flatten()
        self.last = keras.layers.Dense(classes)

    def call(self, images):
        return self.last(self.flatten(self.scale(images)))


class Subclassed(trainer.Task):
    def build_model(self):
        model = Net(10)
        model(tf.zeros((1, 28, 28, 1)))
        return model


class Ink(trainer.Task):
    \"\"\"Predicts how bright an image is: no classes.\"\"\"

    def build_model(self):
        return keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])

    def loss(self, labels, outputs):
        return tf.square(outputs[:, 0] - tf.cast(labels, tf.float32))

    def metrics(self, labels, outputs):
        return {"near": tf.cast(tf.abs(outputs[:, 0] - tf.cast(labels, tf.float32)) < 2.0, tf.float32)}
"""
FLAGS = ("--augment=shift", "--global_batch_size=64", "--checkpoint_every=20", "--log_every=0")


@pytest.fixture
def copy(lenet, tmp_path):
    """A copy of the run, to damage."""
    return shutil.copytree(lenet[0], tmp_path / "run")


def evaluate(*flags, cwd=None):
    return forked.run(["-m", "trainer.evaluate", *map(str, flags)], **({"cwd": cwd} if cwd else {}))


def json_of(*flags, cwd=None):
    done = evaluate(*flags, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_says_what_the_run_says_and_more(lenet, tmp_path):
    folder, printed = lenet
    last = [line for line in printed.splitlines() if line.startswith("test accuracy")][-1]
    done = evaluate(f"--model_dir={folder}", f"--output={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"lenet at step 60, averaged weights ({folder}/ckpt-60)"
    assert lines[1] == last
    assert re.match(r"test accuracy = 0\.\d{4}, loss = \d\.\d{4} \(368 examples; averaged weights\)", last)
    assert lines[3].split()[:4] == ["class", "examples", "precision", "recall"]
    assert sum(int(line.split()[1]) for line in lines[4:14]) == 368
    assert lines[-1] == "written: " + ", ".join(
        f"{tmp_path}/out/{name}" for name in ("report.json", "confusion.png", "mistakes.png")
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert f"test accuracy = {report['metrics']['accuracy']:.4f}" in last
    for name in ("confusion", "mistakes"):
        assert np.asarray(Image.open(tmp_path / "out" / f"{name}.png").convert("RGB")).std() > 10
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "confusion.png",
        "mistakes.png",
        "report.json",
    ]


def test_raw_and_averaged_weights_of_any_checkpoint_in_any_batches(lenet):
    folder, _ = lenet
    averaged, again = (json_of(f"--model_dir={folder}", f"--batch_size={size}") for size in (64, 50))
    raw = json_of(f"--model_dir={folder}", "--weights=raw")
    earlier = json_of(f"--model_dir={folder}", "--checkpoint=20")
    assert [found["weights"] for found in (averaged, raw, earlier)] == ["ema", "raw", "ema"]
    assert [found["step"] for found in (averaged, raw, earlier)] == [60, 60, 20]
    assert len({found["loss"] for found in (averaged, raw, earlier)}) == 3
    assert (again["num_examples"], again["report"]["confusion"]) == (368, averaged["report"]["confusion"])
    assert again["loss"] == pytest.approx(averaged["loss"], rel=1e-5)
    assert averaged["report"]["loss"] == pytest.approx(averaged["loss"], rel=1e-5)
    assert averaged["report"]["accuracy"] == pytest.approx(averaged["metrics"]["accuracy"])
    assert scalars(folder / "logs")["eval/test/accuracy", 20] == pytest.approx(earlier["metrics"]["accuracy"])


def test_a_split_without_some_classes_and_another_data_set(lenet, digits, tmp_path):
    found = json_of(f"--model_dir={lenet[0]}", "--split=test[:5]", f"--data_dir={digits}")
    assert (found["num_examples"], found["split"]) == (5, "test[:5]")
    absent = [each for each in found["report"]["classes"] if not each["examples"]]
    assert len(absent) >= 5
    assert all(each["recall"] is None for each in absent)


@pytest.mark.slow
def test_another_data_set_is_evaluated_on_by_the_run_and_after_it(digits, tmp_path):
    new, folder = tmp_path / "new", tmp_path / "run"
    new.mkdir()
    for shard in manifests.load(digits).splits["test"].shards:
        shutil.copy(digits / shard.file, new / shard.file.replace("test-", "held_out-"))
    index.main(
        [str(new), "--split=held_out:*", "--feature_map=image:image,label:label,key:key", "--image_shape=28x28x1"]
    )
    flags = ("--model=mlp", "--train_steps=4", "--train_split=train+test", f"--eval_data_dir={new}", *FLAGS)
    out = runs.train(digits, folder, *flags)
    last = [line for line in out.splitlines() if line.startswith("held_out accuracy")][-1]
    assert "(368 examples; averaged weights)" in last
    found = json_of(f"--model_dir={folder}")
    assert (found["data_dir"], found["split"], found["num_examples"]) == (str(new), "held_out", 368)
    assert f"held_out accuracy = {found['metrics']['accuracy']:.4f}" in last
    again = json_of(f"--model_dir={folder}", f"--data_dir={digits}", "--split=test")
    assert (again["data_dir"], again["split"]) == (str(digits), "test")
    assert again["metrics"]["accuracy"] == found["metrics"]["accuracy"]  # they are the same images
    [path] = folder.glob("ckpt-4.index")
    made = built.build(reader.read(path.with_suffix("")), CheckpointFlags(str(folder)))
    assert str(made.split.request.folder) == str(new)


def test_mistakes_are_named_by_their_keys(lenet, digits):
    from pipeline import RandomAccess

    found = json_of(f"--model_dir={lenet[0]}", "--checkpoint=20", "--mistakes=3")["report"]["mistakes"]
    assert len(found) == 3
    assert [each["loss"] for each in found] == sorted((each["loss"] for each in found), reverse=True)
    split = RandomAccess(digits, "test")
    for each in found:
        example = split[each["record"]]
        assert (example["key"].decode(), example["label"]) == (each["key"], each["label"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "--model=models:small",
        "--model=models:compiled",
        "--task=models:Subclassed",
    ],
)
def test_a_model_of_the_users(model, digits, tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    flags = ["-m", "trainer.run", f"--data_dir={digits}", "--model_dir=run", model, "--train_steps=30"]
    out = forked.output(flags, cwd=tmp_path)
    found = json_of("--model_dir=run", cwd=tmp_path)
    assert f"test accuracy = {found['metrics']['accuracy']:.4f}" in out
    assert found["report"]["accuracy"] == pytest.approx(found["metrics"]["accuracy"], abs=1e-6)
    assert found["report"]["loss"] == pytest.approx(found["loss"], rel=1e-4)


def test_a_task_without_classes_has_its_metrics_alone(digits, tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    flags = ["--task=models:Ink", "--augment=shift", "--train_steps=20", "--learning_rate=0.001"]
    out = forked.output(["-m", "trainer.run", f"--data_dir={digits}", "--model_dir=run", *flags], cwd=tmp_path)
    done = evaluate("--model_dir=run", "--output=out", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "models:Ink at step 20 (run/ckpt-20)",
        out.splitlines()[-2],
        "written: out/report.json",
    ]
    elsewhere = evaluate(f"--model_dir={tmp_path}/run")
    assert elsewhere.returncode == 2
    assert "--task=models:Ink: importing models fails" in elsewhere.stderr


def damage(path):
    data = path.with_name(f"{path.name}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 3])


def test_a_damaged_checkpoint_is_skipped_unless_it_was_named(copy):
    damage(copy / "ckpt-60")
    done = evaluate(f"--model_dir={copy}")
    assert done.returncode == 0, done.stderr
    skipped, name, *_ = done.stdout.splitlines()
    assert skipped.startswith(f"warning: skipped {copy}/ckpt-60, which is damaged: ")
    assert skipped.endswith(f"; {copy}/ckpt-40 is used instead")
    assert name == f"lenet at step 40, averaged weights ({copy}/ckpt-40)"
    said = forked.refused(evaluate(f"--model_dir={copy}", "--checkpoint=60"), 1)
    assert said.startswith(f"trainer.evaluate: {copy}/ckpt-60: cannot be read: ")


def test_a_checkpoint_that_has_lost_its_index_is_named_too(copy):
    (copy / "ckpt-60.index").unlink()
    said = f"warning: skipped {copy}/ckpt-60, which is damaged: its .index file is missing; {copy}/ckpt-40 is used "
    done = evaluate(f"--model_dir={copy}")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{said}instead"), done.stderr
    assert "warning" not in evaluate(f"--model_dir={copy}", "--checkpoint=40").stdout


def test_where_a_run_has_replaced_all_checkpoints_the_newest_is_looked_for_again(copy):
    listed = [copy / f"ckpt-{step}" for step in (40, 20)]
    forget(copy, 40, 20)
    lines = []
    found = built.build_first(listed, CheckpointFlags(str(copy)), lines.append)
    assert found.record.path == copy / "ckpt-60"
    assert lines == [f"skipped {copy}/ckpt-40: was removed"]
    shutil.rmtree(copy)
    with pytest.raises(DataError, match=f"^{copy}/ckpt-20: cannot be read: "):
        built.build_first(listed, CheckpointFlags(str(copy)), lines.append)


def test_it_ends_quietly_where_nobody_reads_on(copy):
    process = forked.Process(["-m", "trainer.evaluate", f"--model_dir={copy}"], {"PYTHONUNBUFFERED": "1"})
    process.stdout.close()  # as `head` does
    assert process.wait() == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""


def test_data_that_have_moved_or_do_not_fit_are_said(copy, digits, tmp_path):
    write_dataset(tmp_path / "other", classes=3)
    said = forked.refused(evaluate(f"--model_dir={copy}", f"--data_dir={tmp_path / 'other'}"))
    assert f"--data_dir={tmp_path / 'other'}: has num_classes 3, but {copy}/ckpt-60 was trained on 10\n" in said
    said = forked.refused(evaluate(f"--model_dir={copy}", "--split=tset"))
    assert "--split=tset: " in said
    assert "did you mean 'test'" in said


@pytest.mark.slow
def test_other_data_in_the_folder_of_that_name_are_no_data_of_the_run(digits, tmp_path):
    """A relative --data_dir counts from the folder in which the run was started, or else from here."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    shutil.copytree(digits, here / "data")
    flags = ("--data_dir=data", "--model_dir=run", "--model=softmax_regression", "--train_steps=2")
    forked.output(["-m", "trainer.run", *flags], cwd=here)
    write_dataset(elsewhere / "data", (60,), (8, 8, 1), test_counts=(20,), classes=10)
    of_run = "trainer.evaluate", "pipeline.inspect --step=0", "pipeline.audit", "trainer.replay --step=0 --from_start"
    commands = [["-m", *command.split(), "--model_dir=../here/run"] for command in of_run]
    wanted = forked.output(["-m", "trainer.evaluate", "--model_dir=run"], cwd=here).replace("run/", "../here/run/")
    for command in commands:
        found = forked.run(command, cwd=elsewhere)
        assert (found.returncode, found.stderr) == (0, ""), found.stderr
        assert found.stdout == wanted or command is not commands[0]
    shown = forked.run(["-m", "trainer.watch", "../here/run", "--json"], cwd=elsewhere)
    [run] = json.loads(shown.stdout)["runs"]
    assert [one["records"] for one in run["data"]] == [manifests.load(digits).split("train").num_examples]
    (here / "data").rename(here / "moved")
    for command in commands:
        said = forked.refused(forked.run(command, cwd=elsewhere))
        assert f"--data_dir=data: {elsewhere}/data holds another data set" in said
        found = forked.run([*command, f"--data_dir={here}/moved"], cwd=elsewhere)
        assert (found.returncode, found.stderr) == (0, ""), found.stderr
    for damaged in ("", "[]", "{"):
        (here / "run" / "order.json").write_text(damaged)
        said = forked.refused(forked.run(["-m", "pipeline.audit", "--model_dir=../here/run"], cwd=elsewhere), 1)
        assert "run/order.json: cannot be read: " in said


def test_a_run_resumes_from_another_folder_with_its_data_and_its_files(digits, tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    shutil.copytree(digits, here / "data")
    flags = ("--data_dir=data", "--eval_data_dir=data", "--model=softmax_regression", "--train_steps=2")
    for run in ("run", "other"):
        own = f"--model_dir={run}", f"--metrics_jsonl={run}.jsonl"
        forked.output(["-m", "trainer.run", *flags, *own], cwd=here)
    wanted = forked.run(["-m", "trainer.run", "--model_dir=run", "--train_steps=4"], cwd=here)
    write_dataset(elsewhere / "data", (60,), (8, 8, 1), test_counts=(20,), classes=10)
    found = forked.run(["-m", "trainer.run", "--model_dir=../here/other", "--train_steps=4"], cwd=elsewhere)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.replace("../here/other/", "run/").replace("../here/other", "run") == wanted.stdout
    assert runs.checkpoint_bytes(here / "other", 4) == runs.checkpoint_bytes(here / "run", 4)
    assert [path.name for path in elsewhere.iterdir()] == ["data"]
    assert [json.loads(line)["step"] for line in (here / "other.jsonl").read_text().splitlines()] == [2, 4]
    again = forked.run(["-m", "trainer.run", "--model_dir=other", "--train_steps=6"], cwd=here)
    assert (again.returncode, again.stderr) == (0, "")


def test_beside_a_run_each_checkpoint_is_evaluated_once(digits, tmp_path):
    """It begins before the run, and both end by themselves."""
    watch = forked.Process(
        ["-m", "trainer.evaluate", f"--model_dir={tmp_path / 'run'}", "--continuous", "--interval=0.2"],
        {"PYTHONUNBUFFERED": "1"},
    )
    assert watch.stdout.readline().startswith(f"waiting for checkpoints in {tmp_path / 'run'}, looking every 0.2 s")
    flags = ("--train_steps=100", "--eval_every=20", "--max_to_keep=9", "--steps_per_loop=5", *FLAGS)
    flags = ("--model=softmax_regression", *flags)
    (code, _, err), (watch_code, watched, watch_err) = finish(runs.start(digits, tmp_path / "run", *flags), watch)
    assert (code, err) == (0, "")
    assert (watch_code, watch_err) == (0, "")
    found = [re.match(r"step (\d+), test accuracy = (\S+), loss = ", line) for line in watched.splitlines()]
    assert [int(match[1]) for match in found if match] == [20, 40, 60, 80, 100]
    own, beside = scalars(tmp_path / "run" / "logs"), scalars(tmp_path / "run" / "logs" / "evaluate")
    assert {step for _, step in beside} == {20, 40, 60, 80, 100}
    assert {tag for tag, _ in beside} == {f"eval/test/{name}" for name in ("loss", "accuracy", "confusion", "mistakes")}
    for (tag, step), value in beside.items():
        if tag.endswith(("loss", "accuracy")):  # the others are pictures
            assert own[tag, step] == pytest.approx(value, rel=1e-4)


def test_beside_a_run_whose_folder_is_removed_it_ends(copy):
    said = forked.refused(evaluate(f"--model_dir={copy / 'ckpt-40'}", "--continuous"))
    assert f"--model_dir={copy}/ckpt-40: is a checkpoint" in said
    forget(copy, 60)
    watch = forked.Process(
        ["-m", "trainer.evaluate", f"--model_dir={copy}", "--continuous", "--interval=0.2"], {"PYTHONUNBUFFERED": "1"}
    )
    for step in (20, 40):
        assert watch.stdout.readline().startswith(f"step {step}, test accuracy = ")
    assert watch.stdout.readline().startswith("waiting for checkpoints")
    shutil.rmtree(copy)
    [(code, _, err)] = finish(watch)
    said = f"trainer.evaluate: {copy}: was removed or moved while its checkpoints were evaluated\n"
    assert (code, err) == (1, said)


def test_what_the_run_has_removed_is_named_in_lines_json_and_for_tensorboard(copy, tmp_path):
    forget(copy, 20, 40)
    found = evaluate(f"--model_dir={copy}", "--continuous", "--json", f"--output={tmp_path}/out")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["missed_steps"] == [20, 40]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["missed_steps"] == [20, 40]
    assert found.stderr.splitlines()[-2:] == [
        "missed steps 20 to 40 (2 checkpoints): the run removed them before they were evaluated; to miss none, give "
        "the run a larger --max_to_keep than 5, or a larger --checkpoint_every than 20",
        "evaluated 1 of 3 checkpoints; missed 2",
    ]
    assert scalars(copy / "logs" / "evaluate")["eval/missed_checkpoints", 60] == 2.0


def test_ctrl_c_ends_it_in_one_line(copy):
    forget(copy, 40, 60)
    watch = forked.Process(["-m", "trainer.evaluate", f"--model_dir={copy}", "--continuous"], {"PYTHONUNBUFFERED": "1"})
    assert watch.stdout.readline().startswith("step 20, test accuracy = ")
    assert watch.stdout.readline().startswith(f"waiting for checkpoints in {copy} after step 20")
    time.sleep(0.2)
    watch.send_signal(signal.SIGINT)
    [(code, out, err)] = finish(watch)
    assert (code, out, err) == (130, "", "trainer.evaluate: interrupted\n")


@pytest.mark.slow
def test_other_data_are_normalised_as_the_runs_were(digits, tmp_path):
    """The other data set has the same digits, and says that they are darker than they are."""
    own, other, run = tmp_path / "own", tmp_path / "other", tmp_path / "run"
    for folder in (own, other):
        shutil.copytree(digits, folder)
    edit_manifest(other, lambda content: content["image_mean"].__setitem__(0, content["image_mean"][0] / 4))
    flags = ("--model=softmax_regression", "--augment=pad_crop_flip(pad=0, flip=False)", "--train_steps=20")
    runs.train(own, run, *flags)
    as_trained = json_of(f"--model_dir={run}")["loss"]
    assert json_of(f"--model_dir={run}", f"--data_dir={other}")["loss"] == as_trained
    assert json_of(f"--model_dir={run}", f"--data_dir={other}", f"--statistics={other}")["loss"] != as_trained
    own.rename(tmp_path / "moved")
    said = forked.refused(evaluate(f"--model_dir={run}", f"--data_dir={other}"))
    assert f"--data_dir={other}: is not what {run}/ckpt-20 was trained on, " in said
    assert "--statistics" in said
    assert json_of(f"--model_dir={run}", f"--data_dir={tmp_path / 'moved'}")["loss"] == as_trained
    given = (f"--data_dir={other}", f"--statistics={tmp_path / 'moved'}")
    assert json_of(f"--model_dir={run}", *given)["loss"] == as_trained


@pytest.mark.slow
def test_mirrored_images_count_in_evaluations(digits, tmp_path):
    run, flags = tmp_path / "run", ("--model=softmax_regression", "--eval_flip", "--augment=shift", "--train_steps=40")
    out = runs.train(digits, run, *flags)
    model = built.build(reader.read(run / "ckpt-40"), CheckpointFlags(model_dir=str(run))).model
    right, examples = 0, 0
    for images, labels, weights in input_fn(digits, "test", global_batch_size=46, training=False, augment="shift"):
        mirrored = model(images[:, :, ::-1], training=False)
        classes = np.argmax(model(images, training=False) + mirrored, axis=1)
        right += int(((classes == labels.numpy()) * weights.numpy()).sum())
        examples += int(weights.numpy().sum())
    assert f"test accuracy = {right / examples:.4f}, loss = " in out
    assert f" ({examples} examples)" in out
    found = json_of(f"--model_dir={run}")
    assert found["metrics"]["accuracy"] == pytest.approx(right / examples)
    assert found["report"]["accuracy"] == pytest.approx(right / examples)
