import pytest

from pipeline.errors import UsageError
from pipeline.files.code import load_code


@pytest.mark.parametrize("text", [":dumps", "json:", "json:dumps.x"])
def test_no_name(text):
    with pytest.raises(UsageError, match=f"--model={text}: "):
        load_code("--model", text)


def test_code_that_is_not_where_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "sheets").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^--task=sheets:Mine: the folder {tmp_path}/sheets has no 'Mine'$"):
        load_code("--task", "sheets:Mine")
    with pytest.raises(UsageError, match=f"No module named 'elsewhere'; run it in the folder .* not in {tmp_path}$"):
        load_code("--task", "elsewhere:Mine")
