import dataclasses
import io
import json

from rich.console import Console

from trainer.launching.local import report, table
from trainer.launching.local.report import JobReport, ProcessReport

PROCESS = ProcessReport(
    "worker 1", "worker", 1, 2, ("2",), 4711, "running", "training", 1200, 51234.5, 0.034, 3, None, "out", "err"
)
JOB = JobReport(
    report.VERSION, 1.0, 1, ("python",), "training", None, 1200, 5000, 1000, 2, (1, 4), (1,), 3, 10, "gone",
    (PROCESS, dataclasses.replace(PROCESS, name="worker 0", last_error="was [killed] by SIGKILL", state="ended")),
)  # fmt: skip


def test_the_table():
    console = Console(file=io.StringIO(), width=120)
    console.print(table.table_of(JOB))
    lines = console.file.getvalue().splitlines()
    assert lines[0].rstrip() == "training, step 1,200 of 5,000, restarts 3, slots given up: 1"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells == [
        ["worker 1", "4711", "training", "1,200", "51,234", "3%", "3", ""],
        ["worker 0", "4711", "ended", "1,200", "51,234", "3%", "3", "was [killed] by SIGKILL"],
    ]


def test_the_status_is_written_whole(tmp_path):
    (tmp_path / report.FILE).write_text("{")
    JOB.write(tmp_path)
    content = json.loads((tmp_path / report.FILE).read_text())
    assert content == json.loads(json.dumps(dataclasses.asdict(JOB)))
    assert (content["step"], content["elastic"], content["processes"][0]["gpus"]) == (1200, [1, 4], ["2"])
    assert [path.name for path in tmp_path.iterdir()] == [report.FILE]
    JOB.write(tmp_path / "none")  # a folder that is gone does not end the job
