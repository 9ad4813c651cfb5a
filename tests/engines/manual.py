"""The lines of docs/clusters.md and docs/training_clusters.md, which the tests of clusters run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from tests.helpers import forked

_TEXT = "".join(
    (forked.ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("clusters.md", "training_clusters.md")
)
_BLOCK = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
_MANIFEST = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OF_THE_TEST = ("--dataset=", "--source=", "--data_dir=")


def command(having: str, replaced: Mapping[str, str]) -> list[str]:
    """Returns the words of the one command that has a text, with its placeholders replaced.

    What to convert is left out of a conversion.

    Args:
      having: a part of it that no other command has.
      replaced: {placeholder: what stands for it}; all of them must be in the command.
    """
    (line,) = [line for line in commands() if having in line]
    for old, new in replaced.items():
        assert line.count(old) == 1, (old, line)
        line = line.replace(old, new)
    return [word for word in shlex.split(line) if not word.startswith(_OF_THE_TEST)]


def commands() -> list[str]:
    """Returns all commands, one per line."""
    return "".join(_BLOCK.findall(_TEXT)).replace("\\\n", " ").splitlines()


def manifests() -> list[dict[str, Any]]:
    """Returns the Kubernetes manifests."""
    texts = _MANIFEST.findall(_TEXT)
    return [manifest for text in texts for manifest in yaml.safe_load_all(text)]
