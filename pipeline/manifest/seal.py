"""The seal of a manifest: a digest of its own content, which tells that it was edited.

Shards have CRCs; nothing else vouches for what the manifest alone says, such as class names and options.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

KEY = "content_sha256"


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest's JSON object with its seal, which replaces an earlier one."""
    return content | {KEY: _digest(content)}


def problem(content: dict[str, Any]) -> str | None:
    """Returns why a manifest's JSON object is not as it was sealed; None if it is, or has no seal.

    Earlier releases wrote none.
    """
    found = _digest(content)
    if content.get(KEY, found) == found:
        return None
    return (
        f"was edited: the SHA-256 of its content is {found[:12]}..., but its {KEY} is {str(content[KEY])[:12]}...; "
        f"restore it, or convert or index the data again; to keep the edit, remove {KEY}"
    )


def _digest(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != KEY}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
