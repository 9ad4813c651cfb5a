"""The figures of docs/measures.py, of a small tree whose figures are known."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "docs" / "measures.py"


def test_a_small_tree(tmp_path):
    files = {
        "stepfeed/__init__.py": "",
        "trainer/__init__.py": "",
        "trainer/run.py": "import pipeline.low\nlimit = 1\n",
        "trainer/other.py": "from trainer import run\nunlimited = 2\n",
        "beam_jobs/__init__.py": "",
        "pipeline/__init__.py": "",
        "pipeline/low.py": "skip_steps = limit = 0\n",
        "tests/test_all.py": "\n\n\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "modules: 7",
        "lines of the product, of its tests: 5, 3",
        "modules that name limit: 2",
        "modules that name skip_steps: 1",
        "modules that name cache_bytes: 0",
        "modules that name max_corrupt: 0",
        "modules that `import trainer.run` loads: 4",
        "longest chain of imports: 3: trainer.other > trainer.run > pipeline.low",
    ]
