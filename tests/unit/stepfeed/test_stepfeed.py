"""The package `stepfeed`, next to user files with the names of our packages."""

import subprocess
import sys

import pytest

import pipeline
import stepfeed
import trainer
from tests.helpers.forked import ROOT

PROGRAM = "from stepfeed import input_fn\nprint(input_fn.__module__)\n"
THEIRS = "answer = 42\n"


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs a program of a folder of the user's, where our packages are installed elsewhere."""

    def run(*command, python=(), **files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('_IN_', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run(
            [sys.executable, *python, *map(str, command)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def last_line(done):
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()[-1]


def test_it_has_all_public_names_and_loads_no_more_than_they_need(run):
    assert set(stepfeed.__all__) == set(pipeline.__all__) | set(trainer.__all__)
    assert all(getattr(stepfeed, name) is getattr(pipeline, name) for name in pipeline.__all__)
    assert all(getattr(stepfeed, name) is getattr(trainer, name) for name in trainer.__all__)
    with pytest.raises(AttributeError, match="'stepfeed' has no attribute 'inputfn'"):
        _ = stepfeed.inputfn
    done = run("-c", "import sys, stepfeed; print({'pipeline', 'trainer', 'tensorflow'} & set(sys.modules))")
    assert done.stdout == "set()\n"


def test_without_a_file_of_that_name_it_is_the_same_import(run):
    assert run("train.py", train=PROGRAM).stdout == "pipeline.input\n"


def test_pythons_own_error_names_the_users_file_alone(run, tmp_path):
    """What docs/commands.md quotes."""
    done = run("train.py", train="from pipeline import input_fn", pipeline=THEIRS)
    assert last_line(done) == f"ImportError: cannot import name 'input_fn' from 'pipeline' ({tmp_path}/pipeline.py)"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"train": PROGRAM, "pipeline": THEIRS}, "pipeline.py"),
        ({"train": f"import pipeline\n{PROGRAM}", "pipeline": THEIRS}, "pipeline.py"),
        ({"train": "import pipeline", "pipeline": PROGRAM}, "pipeline.py"),
        ({"train": PROGRAM, "pipeline_IN___init__": THEIRS}, "pipeline"),
    ],
    ids=["not imported", "imported before", "imports it itself", "a package"],
)
def test_a_file_of_that_name_is_named_in_one_line(run, tmp_path, files, place):
    assert last_line(run("train.py", **files)) == (
        f"ImportError: stepfeed needs its package 'pipeline', but {tmp_path / place} has the same name and comes "
        "first; rename it or move it into a package of yours; or, if this program does not import it, start Python "
        "with -P"
    )


def test_a_program_that_is_itself_named_so(run, tmp_path):
    assert f"but {tmp_path}/pipeline.py has the same name" in last_line(run("pipeline.py", pipeline=PROGRAM))


def test_what_the_line_advises_works(run):
    files = {"train": PROGRAM, "pipeline": THEIRS}
    assert run("train.py", python=["-P"], **files).stdout == "pipeline.input\n"

    moved = f"from mine import pipeline\n{PROGRAM}print(pipeline.answer)"
    done = run("other/train.py", other_IN_train=moved, other_IN_mine_IN_pipeline=THEIRS)
    assert done.stdout == "pipeline.input\n42\n"


def test_a_trainer_of_the_users_is_no_matter_to_the_input(run):
    assert run("train.py", train=f"import trainer\n{PROGRAM}", trainer=THEIRS).stdout == "pipeline.input\n"


@pytest.mark.parametrize("name", ["pipeline", "trainer"])
def test_to_train_both_must_be_ours(run, tmp_path, name):
    done = run("mine.py", mine="from stepfeed import TrainConfig, train", **{name: THEIRS})
    assert f"its package '{name}', but {tmp_path}/{name}.py has the same name" in last_line(done)


def test_the_readme_quotes_the_lines(run, tmp_path):
    readme = " ".join((ROOT / "docs" / "commands.md").read_text(encoding="utf-8").split())
    for program in (PROGRAM, "from pipeline import input_fn"):
        said = last_line(run("train.py", train=program, pipeline=THEIRS))
        assert said.replace(str(tmp_path), "/home/me/project") in readme


def test_a_folder_without_init_counts_where_it_comes_first(run, tmp_path):
    """Python takes such a folder only where no package follows on its path, but editable installs are not on it."""
    (tmp_path / "pipeline").mkdir()
    finder = f"""
import importlib.machinery, sys

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, [{str(ROOT)!r}], target)

sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]
sys.meta_path.append(Editable)
"""
    assert f"but {tmp_path}/pipeline has the same name" in last_line(run("train.py", train=finder + PROGRAM))


def test_a_module_that_no_import_made_is_named_by_its_file(run):
    made = (
        "import sys, types\nsys.modules['pipeline'] = theirs = types.ModuleType('pipeline')\ntheirs.__file__ = 'x.py'\n"
    )
    assert "but x.py has the same name" in last_line(run("train.py", train=made + PROGRAM))


def test_the_console_scripts_look_in_no_folder_of_the_users(run):
    """`python -m` puts the current folder first, a script its own."""
    files = {"pipeline": THEIRS, "bin_IN_stepfeed_train": "from trainer.run import entry_point\nentry_point()\n"}
    done = run("bin/stepfeed_train.py", "--help", **files)
    assert done.returncode == 0, done.stderr
    assert "--model_dir" in done.stdout
    assert "pipeline.py has the same name and comes first" in run("-m", "trainer.run", "--help").stderr
