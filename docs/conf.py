"""The site of these pages: `make docs`. They are plain Markdown; what only the site has is made here, from the code.

A comment in a page says what, and where: `<!-- pages -->` a table of contents of the pages that the section above
lists, `<!-- names: MODULE -->` the public names of a module, or those after a colon, without members, `<!-- flags -->`
the flags of every command, `<!-- messages -->` what the commands say of mistakes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.commands import commandline, flags, quiet  # noqa: E402
from stepfeed.command import COMMANDS  # noqa: E402

project = "stepfeed"
html_title = "stepfeed"
copyright = "the authors of stepfeed; licence: Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Links of the pages name files of the repository. So its root is where Sphinx reads, less what holds no page.
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "docs/*.md", "examples/README.md", "benchmarks/RESULTS.md"]
exclude_patterns = [".*", "demo", "docs/_build", "tests", "pipeline", "trainer", "beam_jobs", "stepfeed*"]
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
highlight_language = "none"
smartquotes = False  # flags keep their hyphens
myst_heading_anchors = 3

default_role = "code"  # docstrings have single backticks, as Markdown has
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
nitpick_ignore_regex = [  # other libraries' names, and the types of arguments that docstrings describe
    ("py:.*", r"(tf|tensorflow|keras|np|numpy|os|pathlib|collections|typing)\..*"),
    ("py:class", r"PathLike|Sources|Size|Where|User(Augment|Parse)|InputContext|pipeline\.input_meter\.Batch"),
    ("py:class", r"pipeline\.request\.\w+Options|trainer\.inference\.Trained|trainer\.exporting\.\w+\.\w+"),
    ("py:exc", "BadImageError"),
    ("py:class", r"trainer\.config\.\w+\.(\w+Flags|FirstWeights)"),
]

_MADE = re.compile(r"^<!-- (pages|names|flags|messages)(?:: (\S+))? -->$", re.MULTILINE)
_GOLDEN = ROOT / "tests/integration/__snapshots__/test_wording"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    with quiet.loading():
        import tensorflow  # noqa: F401, PLC0415
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _as_rst, priority=100)  # before napoleon
    app.connect("build-finished", _redirect)


def _fill(app: Any, page: str, source: list[str]) -> None:
    makers = {"pages": _pages, "names": _names, "flags": _flags, "messages": _messages}
    source[0] = _MADE.sub(
        lambda found: "\n".join(makers[found[1]](found[2] or found.string[: found.start()])), source[0]
    )
    if page.startswith("docs/changes_"):  # which have every word, and would come before the page that has the answer
        source[0] = f"---\nnosearch: true\n---\n{source[0]}"


def _as_rst(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Makes the pages that docstrings name links, and what they indent code."""
    text = re.sub(r"\bdocs/(\w+)\.md\b", r":doc:`/docs/\1`", "\n".join(lines))
    lines[:] = re.sub(r"\n\n(?= {4}\S)", "\n\n::\n\n", text).split("\n")


def _redirect(app: Any, error: Exception | None) -> None:
    """Lets the site begin at its first folder, and leads from pages that have moved to where they are."""
    for old, new in {"index": root_doc, "docs/distortions": "augmentation"}.items():  # a link is relative to its page
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={new}.html"><title>{project}</title>\n'
        pathlib.Path(app.outdir, f"{old}.html").write_text(text, encoding="utf-8")


def _pages(above: str) -> Iterator[str]:
    title, _, section = above.rpartition("\n## ")[2].partition("\n")
    pages = re.findall(r"\[([^\]]+)\]\(([^)#:]+)\.md\)", section)
    yield from ("```{toctree}", ":hidden:", f":caption: {title}", "")
    yield from (*(f"{text.replace('`', '')} <{page}>" for text, page in pages), "```")


def _names(which: str) -> Iterator[str]:
    module, _, names = which.partition(":")
    yield "```{eval-rst}"
    for name in names.split(",") if names else importlib.import_module(module).__all__:
        is_class = isinstance(getattr(importlib.import_module(module), name), type)
        yield f".. auto{'class' if is_class else 'function'}:: {module}.{name}{'()' if names else ''}"
        if is_class and not names:
            yield from ("   :members:", "   :special-members: __getitem__, __len__, __next__")
        yield ""
    yield "```"


def _flags(_: str) -> Iterator[str]:
    for command, (module, text) in COMMANDS.items():
        description, kind, defaults = _parsed(module)
        yield from (f"## stepfeed {command}", "", f"To {_plain(text)}. {_plain(description)}", "")
        yield from (f"```{{program}} stepfeed {command}", "```", "")
        for group, of_group in itertools.groupby(flags.flags_of(kind).values(), lambda flag: flag.group):
            about = _plain(commandline.about(group).rstrip(" ,."))
            yield from (f"{about}." if group is kind else f"**{about}**", "")
            for flag in of_group:
                yield from _option(flag, defaults.get(flag.name, flag.field.default))


def _option(flag: flags.Flag, default: Any) -> Iterator[str]:
    metadata, options, names = flag.field.metadata, commandline.options_of(flag, default), commandline.names_of(flag)
    value = options.get("metavar", "").upper()
    shown = [value] if metadata["positional"] else [f"{names[0]}={value}".rstrip("="), *names[1:]]
    more = [f"One of {', '.join(f'`{name}`' for name in metadata['known'])}."] if metadata["known"] else []
    more += [f"Must be {_plain(flags.words(metadata['bounds']))}."] if metadata["bounds"] else []
    more += ["Required."] if default is dataclasses.MISSING and not metadata["repeated"] else []
    why = metadata.get("parameter_server") or {}
    refused = {"": why} if isinstance(why, str) else why
    for name, reason in refused.items():
        what = f"`{name}` is refused" if name else "Refused"
        more.append(f"{what} with `--strategy=parameter_server`: {_plain(reason)}.")
    text = _plain(options["help"].replace("%%", "%")).rstrip(".")
    yield from (f"```{{option}} {', '.join(shown)}", f"{text}. {' '.join(more)}", "```", "")


def _parsed(module: str) -> tuple[str, type, dict[str, Any]]:
    """Returns what a command gives its parser: a description, the dataclass of its flags, other defaults than its."""
    command = importlib.import_module(f"{module}.__main__" if module.startswith("pipeline.") else module)
    with (
        mock.patch.object(commandline, "parse_known", side_effect=_ParsingError) as parse,
        contextlib.suppress(_ParsingError),
    ):
        command.main(["--"])
    _, description, kind, _, *defaults = parse.call_args.args
    return description, kind, (defaults or [None])[0] or {}


class _ParsingError(Exception):
    """Ends a command where it would parse its flags."""


def _messages(_: str) -> Iterator[str]:
    names = {module: command for command, (module, _) in COMMANDS.items()}
    for path in sorted(_GOLDEN.glob("*.txt")):
        module = path.stem.partition("[")[2].rstrip("]")
        yield from (f"## stepfeed {names[module]}", "", "| | exit code | message |", "|---|---|---|")
        for case in re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            said = re.findall(rf"^!\| {re.escape(module)}: (.*)$", case, re.MULTILINE)
            code = re.findall(r"^exit code (\d+)$", case, re.MULTILINE)
            if said:
                text = "<br>".join(_plain(one.replace("TMP/", "")) for one in said)
                yield f"| {_plain(case.partition(':')[0])} | {code[0]} | {text} |"
        yield ""


def _plain(text: str) -> str:
    """Returns Markdown that shows a text as it is."""
    return re.sub(r"([\\`*_{}\[\]()<>#|~$&])", r"\\\1", text)
