import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from trainer.config import TrainConfig, file, parse

PATHS = {"data_dir": "D", "model_dir": "M"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recipe.yaml"


def test_flags_of_the_command_line_override_those_of_the_file_and_both_the_models(path):
    path.write_text("data_dir: D\nmodel: resnet20\nlearning_rate: 0.3\nresize: null\njit_compile: true\n")
    config = parse([f"--config={path}", "--model_dir=M", "--learning_rate=0.2"])
    assert config == TrainConfig.of(**PATHS, model="resnet20", learning_rate=0.2, jit_compile=True)
    assert config.optimizer.decay_at == "91,136.5"  # the model's


@pytest.mark.parametrize(
    ("text", "name", "lines"),
    [
        ("seed: 1\nmodel: lenet\nseed: 1\n", "seed", "1 and 3"),
        ("optimizer:\n  momentum: 0.8\nmodel: lenet\noptimizer: {ema: 0.9}\n", "optimizer", "1 and 4"),
        ("learning_rate: 0.1\noptimizer:\n  learning_rate: 0.2\n", "learning_rate", "1 and 3"),
        ("a: {seed: 1}\nb: {seed: 2}\n", "seed", "1 and 2"),
    ],
)
def test_what_is_given_twice_is_refused_with_both_lines(text, name, lines, path):
    path.write_text(text)
    with pytest.raises(UsageError, match=f"--config={path}: {name} .* {lines}"):
        parse([f"--config={path}", "--data_dir=D", "--model_dir=M"])


@pytest.mark.parametrize("flag", ["--augment=flip", "--distort=flip", "--distort flip"])
def test_a_flag_overrides_that_of_a_file_by_either_of_its_names(flag, path):
    path.write_text("data: {data_dir: D, distort: shift, distort_on: host}\nmodel_dir: M\n")
    assert parse([f"--config={path}"]) == TrainConfig.of(**PATHS, augment="shift", augment_on="host")
    assert parse([f"--config={path}", *flag.split()]) == TrainConfig.of(**PATHS, distort="flip", distort_on="host")


def test_both_names_of_a_flag_in_a_file_are_refused(path):
    path.write_text("data: {distort: shift}\naugment: shift\n")
    with pytest.raises(UsageError, match=f"^--config={path}: distort and augment: are two names of the same thing"):
        parse([f"--config={path}", "--data_dir=D", "--model_dir=M"])
    with pytest.raises(UsageError, match="^distort_on and augment_on: are two names of the same thing"):
        TrainConfig.of(**PATHS, distort_on="host", augment_on="host")


def test_a_group_may_have_the_name_of_a_flag_and_override_what_it_merges(path):
    path.write_text("model: {model: lenet}\nbase: &base {seed: 1, epochs: 2}\norder:\n  <<: *base\n  seed: 3\n")
    config = parse([f"--config={path}", "--data_dir=D", "--model_dir=M"])
    assert (config.model.model, config.order.seed, config.steps.epochs) == ("lenet", 3, 2)


def test_lists_and_groups(path):
    path.write_text("optimizer:\n  schedule: piecewise\n  decay_at: [3, 4.5]\nrun: {model_dir: M}\ndata_dir: D\n")
    assert parse(["--config", str(path)]) == TrainConfig.of(**PATHS, schedule="piecewise", decay_at="3,4.5")


def test_texts_stay_as_they_are_written(path):
    path.write_text(
        "data_dir: 2024_01_01\nmodel_dir: 010\nprofile: 10:20\neval_split: no\nresize: 8x8\nmodel: softmax_regression\n"
    )
    flags = ["--data_dir=2024_01_01", "--model_dir=010", "--profile=10:20", "--eval_split=no", "--resize=8x8"]
    assert parse([f"--config={path}"]) == parse([*flags, "--model=softmax_regression"])
    path.write_text("data_dir: 2024-13-01\nmodel_dir: 1e3\n")
    assert parse([f"--config={path}"]) == parse(["--data_dir=2024-13-01", "--model_dir=1e3"])


def test_switches_and_what_is_unset(path):
    flags = {"true": "true True TRUE yes on On 1 'true'", "false": "false False no off 0"}
    for value, texts in flags.items():
        for text in texts.split():
            path.write_text(f"data_dir: D\nmodel_dir: M\nmodel: fast_cifar\neval_flip: {text}\n")
            assert parse([f"--config={path}"]).model.eval_flip == (value == "true")
    for text in ("null", "~", "", "Null"):
        path.write_text(f"data_dir: D\nmodel_dir: M\nclip_norm: {text}\nresize: {text}\n")
        assert parse([f"--config={path}"]) == TrainConfig.of(**PATHS)


YAML = [
    "2024_01_01",
    "2024-01-01",
    "010",
    "10:20",
    "no",
    "null",
    "1e3",
    "true",
    "=",
    "",
    "on",
    "<<",
    "- a",
    "a: b",
]
# A command line takes ~ for the home folder.
TEXTS = st.sampled_from(YAML) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="~"), max_size=9
)
FLAGS = st.fixed_dictionaries(
    {"train_split": TEXTS},
    optional={
        "eval_split": TEXTS,
        "summary_secs": st.floats(0, allow_nan=False),
        "learning_rate": st.floats(1e-30, 1e30),
        "train_steps": st.integers(1, 10**12),
        "jit_compile": st.sampled_from(["auto", "on", "off"]),
        "clip_norm": st.none() | st.floats(1e-9, 1e9),
        "optimizer": st.sampled_from(["adam(beta_2=0.95)", "sgd"]),
    },
)


@given(flags=FLAGS)
def test_what_is_stored_is_read_as_it_was(flags, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "stored.yaml"
    config = TrainConfig.of(**PATHS, **flags)
    file.write(path, dataclasses.asdict(config))
    assert parse([f"--config={path}"]) == config


def test_numbers(path):
    path.write_text(
        "data_dir: D\nmodel_dir: M\nlearning_rate: 1e-3\nweight_decay: 1.0e-05\nmomentum: .5\ntrain_steps: 1_000\n"
        "summary_secs: .inf\nseed: +3\n"
    )
    rates = {"learning_rate": 0.001, "weight_decay": 0.00001, "momentum": 0.5, "summary_secs": float("inf")}
    assert parse([f"--config={path}"]) == TrainConfig.of(**PATHS, **rates, train_steps=1000, seed=3)


def test_merged_groups(path):
    path.write_text("run: &run {model_dir: M, seed: 3}\ndata: {data_dir: D, seed: 4, <<: *run}\n")
    assert parse([f"--config={path}"]) == TrainConfig.of(**PATHS, seed=4)


def test_what_is_dumped_is_the_same_config(path, capsys):
    flags = ["--model=cifar10_cnn", "--ema=0.99", "--optimizer=adam(beta_2=0.95)", "--seed=3", "--resize=8x8"]
    given = [*(f"--{name}={value}" for name, value in PATHS.items()), *flags]
    with pytest.raises(SystemExit) as ended:
        parse([*given, "--dump_config"])
    assert ended.value.code == 0
    path.write_text(capsys.readouterr().out)
    assert parse([f"--config={path}"]) == parse(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 0.1", "recipe.yaml: flag: unknown 'learning_rat'; did you mean 'learning_rate'"),
        ("- 1", "must hold flags, as in .*; got list"),
        ("", "got NoneType"),
        ("a: [", "is not YAML: "),
        ("learning_rate: {a: 1}", "flag: unknown 'a'"),
        ("optimizer: {learning_rat: 1}", "unknown 'learning_rat'"),
        ("learning_rate: fast", "learning_rate.*fast"),
    ],
)
def test_a_file_that_cannot_work_is_one_line(text, message, path):
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        parse([f"--config={path}", "--data_dir=D", "--model_dir=M"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--config=no.yaml"], "no.yaml: cannot be read"),
        (["--config"], "--config: expected a value"),
        (["--config=a.yaml", "--model_dir=M", "--config", "b.yaml"], "--config=a.yaml --config=b.yaml: give one file$"),
        (["--data_dir=D", "--model_dir=M", "--dump_config=true"], "^--dump_config: takes no value; write"),
    ],
)
def test_what_cannot_work_of_the_command_line(given, message):
    with pytest.raises(UsageError, match=message):
        parse(given)


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"model_dir": "M"}, "data_dir: is missing"), ({**PATHS, "epoch": 3}, "unknown 'epoch'; did you mean 'epochs'")],
)
def test_keywords_that_cannot_work(flags, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig.of(**flags)


def test_a_run_resumes_with_its_own_flags_where_its_folder_alone_is_given(tmp_path):
    """But for the place in the cluster, which is that of the process that wrote them."""
    given = ["--data_dir=D", f"--model_dir={tmp_path}", "--model=lenet", "--seed=7", "--epochs=3"]
    first = parse([*given, "--strategy=multiworker", "--worker_hosts=a:1,b:1", "--task_index=0"])
    file.write(tmp_path / "config.yaml", dataclasses.asdict(first))
    again = parse([f"--model_dir={tmp_path}", "--epochs=5"])
    assert (again.data.data_dir, again.model.model, again.order.seed) == ("D", "lenet", 7)
    assert (again.steps.epochs, again.optimizer) == (5, first.optimizer)
    assert (again.run.strategy, again.cluster.worker_hosts, again.cluster.task_index) == ("multiworker", None, None)
    other = parse(["--data_dir=E", f"--model_dir={tmp_path}"])  # what is trained alone
    assert (other.data.data_dir, other.model.model, other.order.seed) == ("E", "lenet", 0)
    (tmp_path / "other.yaml").write_text("seed: 8\n")
    of_file = [f"--model_dir={tmp_path}", f"--config={tmp_path}/other.yaml"]  # a run of its own, too
    for nowhere in ([f"--model_dir={tmp_path / 'none'}"], of_file, " ".join(of_file).replace("g=", "g ").split()):
        with pytest.raises(UsageError, match="--data_dir is missing"):
            parse(nowhere)
