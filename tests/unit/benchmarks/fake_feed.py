"""A contestant of `benchmarks.input_throughput` for tests: it waits, works, or has a child that does."""

import json
import multiprocessing
import pathlib
import time

PACKAGES = ()
MODULES = ("json",)
AUGMENTS = "nothing"


def prepare(setting):
    pathlib.Path(setting.own, "made.json").write_text(json.dumps(setting.options))


def take(setting):
    made = json.loads(pathlib.Path(setting.own, "made.json").read_text())
    if made.get("fails"):
        raise RuntimeError("out of order")
    if made.get("child"):
        context = multiprocessing.get_context("fork")
        holds = context.Event()
        context.Process(target=_work, args=(holds,), daemon=True).start()
        holds.wait()

    def take_one():
        time.sleep(made["sleep"])
        return setting.rows, 0.0

    return take_one


def _work(holds):
    held = bytearray(b"x") * (100 << 20)  # never 200 MiB, as a copy of bytes would be for a moment
    holds.set()
    while held:
        pass
