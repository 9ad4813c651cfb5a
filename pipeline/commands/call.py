"""What a flag's value names, as in a Python call: `shift` or `shift(pixels=2)`."""

from __future__ import annotations

import ast

from pipeline.errors import UsageError


def parse_call(text: str, flag: str, what: str) -> tuple[str, dict[str, object]]:
    """Returns the name and the arguments.

    Args:
      text: a name, or a name with keyword arguments that are literals.
      flag: what the user called it, for errors.
      what: what it names, for errors.

    Raises:
      UsageError: the text is neither.
    """
    problem = UsageError(f"{flag}: {text!r} is not {what}; write a name or name(argument=value)")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Constant) and tree.value is None:  # Python reads `None`, people mean `none`
            return "none", {}
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise problem
        return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (SyntaxError, ValueError):
        raise problem from None
