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
        multiprocessing.get_context("fork").Process(target=_work, daemon=True).start()

    def take_one():
        time.sleep(made["sleep"])
        return setting.rows, 0.0

    return take_one


def _work():
    held = bytearray(b"x" * (100 << 20))
    while held:
        pass
