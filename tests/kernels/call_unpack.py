"""Calls a module that was compiled with sanitizers, in a Python that has loaded them first: MODULE CASES.

It loads nothing but NumPy, since a fault of another library would end it as well.
"""

import importlib.util
import os
import pickle
import sys
import tempfile

import numpy as np


def main(path, cases):
    spec = importlib.util.spec_from_file_location("_unpack", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    refused = 0
    with open(cases, "rb") as file:
        calls = pickle.load(file)
    for name, arguments in calls:
        values, opened = [], None
        for kind, *rest in arguments:
            if kind == "buffer":
                values.append(memory_of(*rest))
            elif kind == "alias":
                of, begin, size = rest
                values.append(values[of][begin : begin + size])
            else:
                opened = tempfile.TemporaryFile()  # noqa: SIM115, closed below
                opened.write(rest[0])
                opened.flush()
                values.append(opened.fileno())
        try:
            getattr(module, name)(*values)
        except ValueError:
            refused += 1
        if opened:
            opened.close()
    print(f"{len(calls)} calls, {refused} refused", flush=True)
    os._exit(0)  # the interpreter's shutdown is not under test


def memory_of(content, offset):
    """Returns an array in its own memory, `offset` bytes after a multiple of 16, which ends where the memory does."""
    whole = np.empty(len(content) + offset % 16, np.uint8)
    memory = whole[offset % 16 :]
    memory[:] = np.frombuffer(content, np.uint8)
    return memory


if __name__ == "__main__":
    main(*sys.argv[1:])
