"""The scripts of examples/your_data as users run them: from an installed wheel, in an empty folder.

COCO is converted by one worker and two, and after kills, in test_boxes; a CSV of paths in test_kill_convert.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

from tests.engines import commands, fetch
from tests.helpers.datasets import files_of
from tests.helpers.forked import ROOT
from tests.integration.test_kill_convert import finished, kill_group, wait_for_shards
from tests.integration.test_packages import run, sdist, unpacked, wheel  # noqa: F401, fixtures

SCRIPTS = sorted((ROOT / "examples/your_data").glob("*.py"))
ENGINE = ["csv_of_paths", "webdataset_shards"]
SAME = ["masks", "patients", "regression", "several_labels", "webdataset_shards"]
TWO_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
NOTED = """#!{python}
import json, os, sys
with open("commands.jsonl", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""  # the command `stepfeed`, which notes its arguments
LAST = {  # by script: what the last line that it prints itself begins with
    "coco": "randaugment(n=1, m=6): ",
    "growing": "23 tensors of ",
    "patients": "{'train': '85 patients', 'validation': '9 patients', 'test': '25 patients'}",
    "webdataset_shards": "150 samples of camera c1",
}


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):  # noqa: F811
    """A folder with `venv`, which has the wheel and the libraries of these tests, and `bin`, with `stepfeed`."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", symlinks=True)
    (place / "bin").mkdir()
    python, program = place / "venv/bin/python", str(place / "venv/bin/stepfeed")
    packages = pathlib.Path(
        run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place).strip()
    )
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # without what its own .pth files add
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, "--ignore-installed", wheel], place)
    for package in ("stepfeed", "pipeline", "trainer", "beam_jobs"):
        where = run([python, "-c", f"import {package}; print({package}.__file__)"], place)
        assert where.startswith(f"{packages}/"), where
    (place / "bin/stepfeed").write_text(NOTED.format(python=python, program=program))
    (place / "bin/stepfeed").chmod(0o755)
    return place


@pytest.fixture(scope="module")
def done(programs, tmp_path_factory):
    """Returns a function that runs a script, once, and returns its folder and what it printed."""
    known = {}

    def of(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            shutil.copy(ROOT / f"examples/your_data/{name}.py", folder)
            path = f"{programs}/bin:{os.environ['PATH']}"
            known[name] = folder, run([programs / "venv/bin/python", f"{name}.py"], folder, PATH=path)
        return known[name]

    return of


def conversion(folder, programs):
    """Returns the command that converted a script's data, without the folder, and into several shards."""
    noted = [json.loads(line) for line in (folder / "commands.jsonl").read_text().splitlines()]
    words = next(words for words in noted if words[0] == "convert" and "--append" not in words)
    words = [word for word in words if not word.startswith(("--data_dir=", "--max_rejects="))]
    return [str(programs / "venv/bin/stepfeed"), *words, "--num_shards=12", "--max_rejects=20"]


@pytest.mark.slow
@pytest.mark.parametrize("script", [path.stem for path in SCRIPTS])
def test_a_script_of_each_form_of_data_runs_from_the_wheel(script, done):
    _, printed = done(script)
    last = [line for line in printed.splitlines() if line][-1]
    assert last.startswith(LAST.get(script, "")), printed


@pytest.mark.slow
@pytest.mark.parametrize("script", SAME)
def test_two_workers_and_a_conversion_that_was_killed_write_the_bytes_of_one_worker(script, done, programs, tmp_path):
    folder, _ = done(script)
    command = conversion(folder, programs)
    run([*command, f"--data_dir={tmp_path}/one", "--direct_num_workers=1"], folder)
    run([*command, f"--data_dir={tmp_path}/two", *TWO_WORKERS], folder)
    again = [*command, f"--data_dir={tmp_path}/killed", *TWO_WORKERS]
    process = subprocess.Popen(
        again, cwd=folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    (tmp_path / "killed").mkdir()
    wait_for_shards(process, tmp_path / "killed", 2)
    kill_group(process)
    before = finished(tmp_path / "killed")
    assert before
    assert not list((tmp_path / "killed").glob("[!.]*"))
    run(again, folder)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two") == files_of(tmp_path / "killed")
    for name, (inode, written) in before.items():
        found = (tmp_path / "killed" / name).stat()
        assert (found.st_ino, found.st_mtime_ns) == (inode, written)


@pytest.mark.engines
@pytest.mark.parametrize("script", ENGINE)
@pytest.mark.parametrize("engine", fetch.ENGINES)
def test_an_engine_writes_the_bytes_of_one_worker(engine, script, done, programs, tmp_path):
    if not fetch.job_server(engine).exists():
        pytest.skip(f"{engine} is not there; make engines brings it")
    folder, _ = done(script)
    command = conversion(folder, programs)
    run([*command, f"--data_dir={tmp_path}/one", "--direct_num_workers=1"], folder)
    run([*command, f"--data_dir={tmp_path}/engine", *commands.FLAGS[engine]], folder)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "engine")
