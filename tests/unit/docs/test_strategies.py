"""docs/strategies.md: its pictures are those that the script draws, and its commands have flags that there are."""

import math
import pathlib
import re
import runpy
import shlex

import pytest

from trainer import config

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
PICTURES = runpy.run_path(str(DOCS / "strategies.py"))["PICTURES"]
TEXT = (DOCS / "strategies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date_and_shown(name):
    assert PICTURES[name]() == (DOCS / name).read_text(encoding="utf-8"), "run: python docs/strategies.py"
    assert f"]({name})" in TEXT


def test_letters_are_large_enough():
    for draw in PICTURES.values():
        assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', draw())) >= 12


def test_stale_gradients_settle_below_the_bounds_that_the_page_has():
    descent = runpy.run_path(str(DOCS / "strategies.py"))["descent"]
    for delay in range(7):
        smooth, stable = delay**delay / (delay + 1) ** (delay + 1), 2 * math.sin(math.pi / (4 * delay + 2))
        assert min(descent(smooth, delay, 600)) >= 0
        assert min(descent(1.1 * smooth, delay, 600)) < 0
        assert abs(descent(0.98 * stable, delay, 4000)[-1]) < 1e-3
        assert max(map(abs, descent(1.02 * stable, delay, 4000)[-100:])) > 100
    assert f"{5**5 / 6**6:.3f} and below {2 * math.sin(math.pi / 22):.3f} for d = 5" in " ".join(TEXT.split())


def test_the_picture_of_the_order_is_up_to_date_and_has_each_record_once():
    script = runpy.run_path(str(DOCS / "order.py"))
    assert script["draw"]() == (DOCS / "order.svg").read_text(encoding="utf-8"), "run: python docs/order.py"
    assert "](order.svg)" in (DOCS / "order.md").read_text(encoding="utf-8")
    shown = [element for step in range(4) for element in zip(*map(list, script["CONTRACT"].batch(step)), strict=True)]
    assert sorted(record for record, real in shown if real) == list(range(22))
    assert [real for _, real in shown].count(False) == 2
    assert len(shown) == 24


def test_flags_of_its_commands():
    commands = re.findall(r"^    python -m trainer\.(?:run|launch) (.+)$", TEXT, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        flags = shlex.split(command.partition("-- ")[2] if " -- " in command else command)
        assert config.parse(flags).data.data_dir == "demo/digits"


def test_the_picture_of_views_is_up_to_date():
    script = runpy.run_path(str(DOCS / "views.py"))
    assert script["draw"]() == (DOCS / "views.svg").read_text(encoding="utf-8"), "run: python docs/views.py"
    assert "](views.svg)" in (DOCS / "views.md").read_text(encoding="utf-8")
