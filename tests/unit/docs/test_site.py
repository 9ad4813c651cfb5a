"""What docs/conf.py makes for the site from the code; `make docs` checks that all of it can be rendered and linked."""

import pathlib
import re
import runpy

import pytest

from stepfeed import command

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
CONF = runpy.run_path(str(DOCS / "conf.py"))
_, *COMMAND_SECTIONS = re.split(r"^## stepfeed ", "\n".join(CONF["_flags"]("")), flags=re.MULTILINE)
SECTIONS = dict(section.split("\n", 1) for section in COMMAND_SECTIONS)


def test_a_comment_of_a_page_is_one_that_is_replaced():
    found = [
        comment
        for page in sorted(DOCS.glob("*.md"))
        for comment in re.findall(r"<!--.*?-->", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(found) >= 15
    assert [comment for comment in found if not CONF["_MADE"].fullmatch(comment)] == []
    assert {"<!-- names: pipeline -->", "<!-- names: trainer -->", "<!-- flags -->", "<!-- messages -->"} <= set(found)


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_flag_that_help_lists_is_on_the_page(name):
    listed = set(command._flags(command.COMMANDS[name][0])) - {"--help"}
    shown = re.findall(r"^```\{option\} (.*)$", SECTIONS[name], re.MULTILINE)
    assert len(listed) >= 3
    assert {one.split("=")[0] for line in shown for one in line.split(", ") if one.startswith("--")} == listed


def test_a_flag_has_its_text_its_default_and_its_bounds():
    (label_smoothing,) = re.findall(r"```\{option\} --label_smoothing=FLOAT\n(.*)", SECTIONS["train"])
    assert label_smoothing.endswith(r"\(default of the model: 0.0\). Must be 0 or more and below 1.")
    (data_dir,) = re.findall(r"```\{option\} --data_dir=STR\n(.*)", SECTIONS["train"])
    assert data_dir.endswith("Required.")
    (precision,) = re.findall(r"```\{option\} --precision=STR\n(.*)", SECTIONS["train"])
    assert (
        "One of `float32`, `bfloat16`, `float16`. `float16` is refused with `--strategy=parameter_server`: "
        in precision
    )


def test_every_error_that_the_test_of_wording_knows_is_on_the_page():
    shown = "\n".join(CONF["_messages"](""))
    cases = "".join(path.read_text(encoding="utf-8") for path in CONF["_GOLDEN"].glob("*.txt"))
    failing = len(re.findall(r"^exit code [1-9]\n(?:\|.*\n)*!\|", cases, re.MULTILINE))
    assert failing > 80
    assert len(re.findall(r"^\| (?!\| exit).+ \| [12] \| ", shown, re.MULTILINE)) == failing


def test_a_section_of_the_index_lists_its_pages_in_the_contents():
    above = "# stepfeed\n\n## Learn\n\n- [A](a.md)\n\n## Do\n\n- [B `b`](b.md), or [c](c.md#part)\n- [D](../D.md)\n\n"
    assert list(CONF["_pages"](above)) == [
        "```{toctree}", ":hidden:", ":caption: Do", "", "B b <b>", "D <../D>", "```"
    ]  # fmt: skip


def test_the_first_page_has_the_commands_of_the_readme():
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("../README.md", "index.md")]
    readme, first = (re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for page in pages)
    assert len(readme[0].splitlines()) == 5
    assert first == readme


def test_a_release_takes_two_screens_and_links_its_full_list():
    _, *releases = re.split(r"^## ", (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [release for release in releases if len(release.splitlines()) > 60] == []
    linked = [re.findall(r"\(docs/(changes_\w+\.md)\)", release) for release in releases]
    assert linked[0] == ["changes_next.md"]
    assert {name for names in linked for name in names} == {page.name for page in DOCS.glob("changes_*.md")}
