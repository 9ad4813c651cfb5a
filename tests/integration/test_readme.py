"""The Python and the commands of README and the pages that continue it run as they stand; make docs checks links."""

import difflib
import functools
import json
import re
import shlex
import shutil
import subprocess

import numpy as np
import PIL.Image
import pytest

from pipeline import RandomAccess
from stepfeed.command import COMMANDS
from tests.helpers import foreign, forked
from tests.helpers.datasets import write_dataset
from tests.helpers.forked import ROOT, free_ports

PAGES = (
    "README.md",
    "docs/augment_libraries.md",
    "docs/augment_on.md",
    "docs/bottlenecks.md",
    "docs/copies.md",
    "docs/feeding.md",
    "docs/reading.md",
    "docs/record_folders.md",
    "docs/topology.md",
    "docs/using.md",
)
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
SNIPPETS = [(page, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", TEXT[page], re.DOTALL)]
MORE = {  # flags of Beam, flags of a file, and a classic name; see `pipeline.commands.aliases`
    "train": {"--config", "--dump_config", "--task_id"},
    "convert": {"--runner", "--direct_num_workers", "--direct_running_mode"},
}
PROGRAMS = {"stepfeed": ["-m", "stepfeed"], "python": []}  # programs that a page's shell starts, for `forked.run`
PRINTED = {  # by what a snippet has: what it prints last
    "model.predict": "predictions (368, 10)\n",
    "waiting_share": "of the second half\n",
    "texts = input_fn": "(3,) [1, 1, 2]\n",
    "range(1000, 1005)": "".join(f"{step} 64.0\n" for step in range(1000, 1005)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, digits):
    path = tmp_path_factory.mktemp("readme")
    (path / "demo").mkdir()
    (path / "demo" / "digits").symlink_to(digits)
    return path


@pytest.fixture(scope="module")
def trained(folder):
    flags = ["--data_dir=demo/digits", "--model_dir=demo/run", "--model=lenet", "--epochs=4", "--log_every=0"]
    forked.output(["-m", "trainer.run", *flags], cwd=folder)


SHOWS_TEXTS = "(first := next(iter(texts)))[1][:3].shape, sorted(map(len, first[0][:3].numpy()))"


@pytest.fixture(scope="module")
def texts(folder):
    """TFRecords of three texts, indexed by the command of docs/reading.md."""
    (folder / "texts").mkdir()
    make = """
import tensorflow as tf
for file in ("train-0.tfrecord", "test.tfrecord"):
    with tf.io.TFRecordWriter(f"texts/{file}") as writer:
        for label, text in enumerate((b"one", b"two words", b"three")):
            features = {"text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
"""
    (command,) = re.findall(r"^    python (-m pipeline\.index texts)$", TEXT["docs/reading.md"], re.MULTILINE)
    for program in (["-c", make], shlex.split(command)):
        forked.output(program, cwd=folder)


@pytest.mark.parametrize(("page", "code"), SNIPPETS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(SNIPPETS)])
def test_snippets_run(page, code, folder, request):
    for words, fixture in (("demo/run", "trained"), ('"texts"', "texts")):
        if words in code:
            request.getfixturevalue(fixture)
    shows = {"model.predict": "'predictions', predictions.shape", "texts = input_fn": SHOWS_TEXTS}
    more = "".join(f"\nprint({shown})" for words, shown in shows.items() if words in code)
    out = forked.output(["-c", code + more], cwd=folder)
    for words, printed in PRINTED.items():
        if words in code:
            assert out.endswith(printed), page
    if "Predictor.of_run" in code:
        assert out.strip() in set("0123456789")
    if "Shard(rank" in code:
        assert out.count("(16, 28, 28, 1)") == 2


@pytest.fixture
def follow(folder):
    """Returns a function that follows a page's instructions in order, and returns the output of each shell line.

    Python that begins with a file's name becomes that file; other Python is run. Servers end with the test.
    """
    servers = []

    def follow(page, replaced=()):
        printed = {}
        for language, block in re.findall(r"^```(python|sh)\n(.*?)```", page_text(page), re.DOTALL | re.MULTILINE):
            text = functools.reduce(lambda text, change: text.replace(*change), replaced, block)
            if file := re.match(r"# (\w+\.py)\n", text):
                (folder / file[1]).write_text(text)
                continue
            for line in [text] if language == "python" else text.replace("\\\n", " ").splitlines():
                if line == "python serve.py":
                    servers.append(forked.Process(["serve.py"], cwd=folder))
                    continue
                if language == "python":
                    done = forked.run(["-c", line], cwd=folder)
                elif (words := shlex.split(line))[0] in PROGRAMS:
                    done = forked.run([*PROGRAMS[words[0]], *words[1:]], cwd=folder)
                else:
                    waits = " --silent --show-error --retry 60 --retry-connrefused --retry-delay 1"
                    command = ["sh", "-c", line + waits * line.startswith("curl")]
                    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
                printed[line] = done.stdout
        return printed

    yield follow
    for server in servers:
        server.kill()
        server.wait()


def page_text(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_tutorial_runs_to_the_letter(folder, follow):
    """With fewer epochs. README's five commands are among its own."""
    (port,) = free_ports(1)
    printed = follow(
        "tutorial.md", [("train data --model_dir=run", "train data --model_dir=run --epochs=10"), ("8000", str(port))]
    )
    names = [line.split()[1] for line in printed if line.startswith("stepfeed")]
    assert names == ["convert", "inspect", "train", "evaluate", "predict", "export"]
    convert, evaluate, predict, ask = (
        next(printed[line] for line in printed if word in line)
        for word in (" convert ", " evaluate ", " predict ", "curl ")
    )
    assert "208 examples to 2 shards" in convert
    assert "train: 171 examples" in convert
    assert float(re.search(r"validation accuracy = ([01]\.\d+), loss = \S+ \(37", evaluate)[1]) > 0.85
    said = [one.split(": ")[1].split()[0] for one in predict.splitlines() if one.startswith("photos/")]
    assert len(said) == 104
    assert said.count("temple") > 90
    assert json.loads(ask)["class_name"] == "temple"
    for picture in ("data/card.html", "batch.png", "evaluation/confusion.png", "evaluation/mistakes.png"):
        assert (folder / picture).is_file(), picture
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT["README.md"], re.DOTALL)
    of_readme = [line.replace("photos/cats", "photos/temple") for line in block.splitlines()]
    assert len(of_readme) == 5
    assert [line for line in of_readme if f"\n{line}" not in page_text("tutorial.md")] == []


@pytest.mark.slow
def test_the_commands_of_the_sources_page_run(folder, follow):
    (task,) = re.findall(r"```python\n(.*?class SeveralClasses.*?)```", page_text("tfrecords.md"), re.DOTALL)
    (folder / "my_tasks.py").write_text(task)
    (folder / "tagged_photos").mkdir()
    lines = ["file_name,tags"]
    for number, tags in enumerate(("beach sea", "sea", "forest", "beach") * 10):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(folder / "tagged_photos" / f"{number}.png")
        lines.append(f"tagged_photos/{number}.png,{tags}")
    (folder / "tags.csv").write_text("\n".join(lines) + "\n")
    once = [("--optimizer=adamw", "--optimizer=adamw --epochs=1 --global_batch_size=20 --eval_split=none")]
    converted, trained = follow("sources.md", once).values()
    assert "train: 40 examples" in converted
    assert "epoch 1 of 1, step 2: loss = " in trained


MNIST = """
import tensorflow_datasets as tfds
from pipeline import RandomAccess

class Mnist(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("3.0.1")  # of TFDS's own

    def _info(self):
        features = {"image": tfds.features.Image(shape=(28, 28, 1)), "label": tfds.features.ClassLabel(num_classes=10)}
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in ("train", "test")}

    def _generate_examples(self, split):
        for number, row in enumerate(RandomAccess("demo/digits", split)):
            yield number, {"image": row["image"], "label": int(row["label"])}

Mnist(data_dir="tfds").download_and_prepare()
"""


def ported(folder, page, names):
    """Runs the scripts of a page; checks its statements about their lines; returns their outputs, by name."""
    printed, counts = {}, []
    for name in names:
        before, after = ((folder / f"{kind}_{name}.py").read_text().splitlines()[1:] for kind in ("before", "after"))
        changes = [line[0] for line in difflib.ndiff(before, after) if line[2:].strip()]
        counts.append((str(changes.count("-")), str(changes.count("+"))))
        for kind in ("before", "after"):
            out = forked.output([f"{kind}_{name}.py"], cwd=folder)
            printed[f"{kind}_{name}"] = out
    assert re.findall(r"^(\d+) lines become (\d+)", page_text(page), re.MULTILINE) == counts
    return printed


@pytest.mark.slow
def test_a_script_is_ported_in_as_few_lines_as_the_page_says(folder, follow):
    forked.output(["-c", MNIST], cwd=folder)
    foreign.flowers(folder / "flowers", labelled=57, unlabelled=5)
    assert any("1,797 examples" in said for said in follow("porting.md").values())
    printed = ported(folder, "porting.md", ["photos", "tfds"])
    for said in (printed["before_tfds"], printed["after_tfds"]):
        assert float(re.findall(r"val_accuracy: (\d\.\d+)", said)[-1]) > 0.4  # of ten classes, after two epochs
    assert "8/8" in printed["after_photos"]  # batches of 8, the last one with 1 row
    assert "val_accuracy" in printed["after_photos"]


@pytest.mark.slow
def test_loops_and_channels_are_ported_in_as_few_lines_as_the_page_says(folder, follow):
    foreign.flowers(folder / "flowers", labelled=57, unlabelled=5)
    (index,) = re.findall(r"^(stepfeed index flowers .*)$", page_text("porting.md"), re.MULTILINE)
    forked.output(["-m", *shlex.split(index), "--overwrite"], cwd=folder)
    for channel, count in (("train", 44), ("validation", 20)):
        images = (np.random.default_rng(i).integers(0, 256, 3 * 32 * 32, np.uint8).tobytes() for i in range(count))
        records = [{"image": image, "label": number % 10} for number, image in enumerate(images)]
        foreign.write(folder / "channels" / channel / f"{channel}.tfrecords", records)
    follow("porting_more.md")
    printed = ported(folder, "porting_more.md", ["loop", "channels"])
    assert [printed[f"{kind}_loop"].split(":")[0] for kind in ("before", "after")] == ["step 13", "step 15"]
    assert [re.findall(r"(\d)/\1\b", printed[f"{kind}_channels"])[-1] for kind in ("before", "after")] == ["5", "6"]


@pytest.mark.slow
def test_what_comes_from_other_tools_runs_as_the_page_says(folder, follow):
    draw = np.random.default_rng(0)
    for name, level in (("cats", 40), ("dogs", 160)):
        (folder / "pets" / name).mkdir(parents=True)
        for number in range(50):
            pixels = draw.integers(level, level + 60, (40, 30, 3), np.uint8)
            PIL.Image.fromarray(pixels).save(folder / "pets" / name / f"{number}.png")
    *_, trained = follow("coming_from.md").values()
    assert "mirrored: 2 replicas" in trained
    assert "lenet" in trained
    printed = ported(folder, "coming_from.md", ["keras"])
    assert "5/5" in printed["before_keras"]
    assert "5/5" in printed["after_keras"]


@pytest.mark.slow
def test_the_towers_of_cifar10_are_ported_in_two_commands(folder):
    """With less data and fewer steps: the content of the first line, and the flags in the page's table."""
    page = page_text("porting.md").partition("## `cifar10_multi_gpu_train.py`")[2]
    convert, train = re.findall(r"^    (stepfeed (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert f"become {len([convert, train])} commands" in page
    write_dataset(folder / "cifar10", (300, 220), (32, 32, 3), (64,))
    words = shlex.split(train.replace("\\\n", " ").replace("--train_steps=1000000", "--train_steps=2"))
    assert set(words) > {"--fresh", "--strategy=central_storage", "--num_replicas=2"}
    out = forked.output(["-m", *words], cwd=folder)
    words = "cifar10_cnn with .*, average of the weights 0.9999; augment cifar10_tutorial; "
    assert re.match(f"central_storage: 2 replicas, .*; {words}", out)
    assert "step 0 to 2 of 256 examples, 3 per epoch; a new run" in out


@pytest.mark.slow
def test_the_commands_of_the_classic_programs_run(folder):
    """With less data and fewer steps."""
    text = page_text("classics.md") + page_text("classics_book.md")
    lines = re.findall(r"^    stepfeed ((?:train|launch) (?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert len(lines) == 4
    write_dataset(folder / "cifar10", (300, 220), (32, 32, 3), (64,))
    for line in lines:
        words = [re.sub("=1000000|=1000|=200$", "=4", word) for word in shlex.split(line.replace("\\\n", " "))]
        words = [re.sub("epochs=10$", "epochs=2", word) for word in words]
        out = forked.output(["-m", "stepfeed", *words], cwd=folder)
        assert "test accuracy = 0." in out, line


def test_code_of_ones_own_trains_as_the_page_says(folder):
    """The model and the compiled model of docs/own_models.md, the call from Python; the tracker of docs/outputs.md."""
    model, compiled, call, *_ = re.findall(r"```python\n(.*?)```", page_text("own_models.md"), re.DOTALL)
    (tracker,) = re.findall(r"```python\n(.*?)```", page_text("outputs.md"), re.DOTALL)
    assert model.startswith("# my_models.py\n")
    (folder / "my_models.py").write_text(f"{model}\n\n{compiled}")
    (folder / "my_module.py").write_text(tracker)
    (folder / "mlflow.py").write_text("def log_metrics(values, step):\n    print('logged', step, *sorted(values))\n")
    (folder / "call.py").write_text(call)
    command = ["-m", "trainer.run", "demo/digits", "--train_steps=20"]
    for program, said in [
        (["call.py"], r"0\.\d+\n$"),
        ([*command, "--model=my_models:compiled", "--model_dir=compiled"], "sparse_top_k_categorical_accuracy = "),
        ([*command, "--task=my_module:Tracked", "--model=mlp", "--model_dir=tracked"], "logged 20 eval/test/"),
    ]:
        out = forked.output(program, cwd=folder)
        assert re.search(said, out), out


def test_rows_are_made_by_a_function_as_the_page_says(folder, follow):
    (rows,) = re.findall(r"```text\n(file_name.*?)```", page_text("transform.md"), re.DOTALL)
    names, first = rows.splitlines()
    lines = [
        f"{n}.jpg,{('cat', 'dog')[n % 2]},{0.75 if n % 3 else 0.25}," + first.split(",", 3)[3] for n in range(1, 91)
    ]
    assert first == lines[0].replace("dog", "cat")
    (folder / "photos.csv").write_text("\n".join([names, *lines]))
    (folder / "places.csv").write_text(
        "\n".join(["file_name,place", *(f"{n}.jpg,place {n % 5}" for n in range(1, 91))])
    )
    for n in range(1, 91):
        PIL.Image.fromarray(np.full((20, 16, 3), n, np.uint8)).save(folder / f"{n}.jpg")
    cropped, twice = follow("transform.md").values()
    (said,) = re.findall(r"```text\n(  clean:crop.*?)```", page_text("transform.md"), re.DOTALL)
    assert said in cropped
    rows = list(RandomAccess(str(folder / "cropped"), "train"))
    assert {row["image"].shape for row in rows} == {(11, 11, 3)}
    assert {row["place"] for row in rows} == {f"place {n}".encode() for n in range(5)}
    assert "train: 90 rows in, 180 out, 0 dropped" in twice


@pytest.mark.slow
def test_existing_records_are_used_as_the_page_says(folder, follow):
    shutil.rmtree(folder / "flowers", ignore_errors=True)  # of the porting page
    foreign.flowers(folder / "flowers", labelled=24, unlabelled=5)
    *commands, printed = follow("tfrecords.md").values()
    assert "test: no labels" in commands[0]
    assert "evaluates on the split 'validation'" in commands[2]
    assert [line.split()[::2] for line in printed.splitlines()] == [[f"{200 + n:05x}", "-1"] for n in range(5)]


@pytest.mark.slow
def test_a_run_is_resumed_as_the_page_says(follow):
    first, second, fresh = follow("resume.md").values()
    assert "step 0 to 30 of 96 examples" in first
    assert "step 0 to 15 of 96 examples, 15 per epoch; a new run" in fresh
    line = next(line for line in page_text("resume.md").splitlines() if line.startswith("mirrored"))
    assert f"{line}\n" in second


# TensorFlow Serving's REST interface, by the signature: requests wait until the page has put the model there.
SERVING = """
import http.server, json, os, sys, time
import tensorflow as tf

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.path == "/v1/models/digits:predict", self.path
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = model(images=tf.constant(sent["instances"], tf.uint8))
        rows = zip(*(rows.numpy().astype(str if name == "class_name" else rows.dtype.as_numpy_dtype).tolist()
                     for name, rows in said.items()))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"predictions": [dict(zip(said, row)) for row in rows]}).encode())

server = http.server.HTTPServer(("localhost", int(sys.argv[1])), Handler)
while not os.path.exists("models/digits/1"):
    time.sleep(0.1)
model = tf.saved_model.load("models/digits/1").signatures["serving_default"]
server.serve_forever()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_a_model_is_served_as_the_page_says(folder, follow):
    (port,) = free_ports(1)
    rows = [RandomAccess(folder / "demo/digits", "test")[number] for number in (0, 1)]
    PIL.Image.fromarray(rows[0]["image"][..., 0]).save(folder / "digit.png")
    server = forked.Process(["-c", SERVING, port], cwd=folder)
    try:
        printed = list(follow("serving.md", [("8501", str(port))]).values())
    finally:
        server.kill()
        server.wait()
    answer, onnx = json.loads(printed[-2])["predictions"], printed[-1].split()
    shown = json.loads(re.search(r"```text\n(.*?)```", page_text("serving.md"), re.DOTALL)[1].replace(", ...]", "]"))
    assert [set(one) for one in answer] == [set(shown["predictions"][0])] * 2
    assert answer[0]["class_name"] == str(rows[0]["label"])
    assert [str(one["class"]) for one in answer] == [one["class_name"] for one in answer]
    assert onnx[0] == answer[0]["class_name"]
    assert float(onnx[1]) == pytest.approx(max(answer[0]["probabilities"]), abs=1e-4)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "launch"])  # which has those of two commands
def test_every_flag_that_a_page_gives_a_command_exists(name):
    module, _ = COMMANDS[name]
    known = forked.output(["-m", module, "--flags"]).split()
    paths = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [path.read_text(encoding="utf-8") for path in paths if not path.name.startswith("changes_")]
    form = rf"(?:python -m {re.escape(module)}|stepfeed {name})\b((?:[^\n`]|\\\n)*)"
    used = {flag for text in texts for line in re.findall(form, text) for flag in re.findall(r"--\w+", line)}
    if name == "train":
        rows = re.findall(r"^\| (`--.*?) \|", (ROOT / "docs/train_flags.md").read_text(encoding="utf-8"), re.MULTILINE)
        used |= {flag for row in rows for flag in re.findall(r"--\w+", row)}
    assert used - {*known, *MORE.get(name, ())} == set()
