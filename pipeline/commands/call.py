"""What a flag's value names, as in a Python call: `shift` or `shift(pixels=2)`; or several with `|` between them."""

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
    calls = _calls(text)
    if calls is None or len(calls) != 1:
        raise problem
    return calls[0]


def parse_calls(text: str, flag: str, what: str) -> list[tuple[str, dict[str, object]]]:
    """Returns the names and the arguments of one or more calls, `a | b(c=1)`; the rest is as of `parse_call`."""
    calls = _calls(text)
    if calls is None:
        raise UsageError(f"{flag}: {text!r} is not {what}; write name(argument=value), and | between several")
    return calls


def _calls(text: str) -> list[tuple[str, dict[str, object]]] | None:
    try:
        return [_call(node) for node in _operands(ast.parse(text.strip(), mode="eval").body)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _operands(tree: ast.expr) -> list[ast.expr]:
    operands: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        operands.append(tree.right)
        tree = tree.left
    return [tree, *reversed(operands)]


def _call(tree: ast.expr) -> tuple[str, dict[str, object]]:
    """Returns a call's name and arguments; raises ValueError where it is none."""
    if isinstance(tree, ast.Constant) and tree.value is None:  # Python reads `None`, people mean `none`
        return "none", {}
    if isinstance(tree, ast.Name):
        return tree.id, {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise ValueError
    if any(keyword.arg is None for keyword in tree.keywords):
        raise ValueError
    return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
