"""Conversion of folders of images: larger than their shards, and next to the output folder."""

import numpy as np
import PIL.Image

from beam_jobs import convert
from beam_jobs.plan import Plan
from tests.helpers.datasets import files_of


def test_rows_are_read_in_parts_where_the_source_is_larger_than_a_shard_may_be(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "source" / f"class{number % 3}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(draw.integers(0, 256, (200, 200, 3), np.uint8)).save(path)  # 120 KB each
    steps = []
    rows_at_once = Plan.rows_at_once
    monkeypatch.setattr(Plan, "rows_at_once", lambda plan, split: steps.append(rows_at_once(plan, split)) or steps[-1])
    flags = ["--dataset=image_folder", f"--source={tmp_path / 'source'}", "--image_encoding=raw", "--resize=8x8"]
    flags += ["--num_shards=1"]
    convert.main([*flags, f"--data_dir={tmp_path / 'parts'}", "--max_shard_bytes=1048576"])
    convert.main([*flags, f"--data_dir={tmp_path / 'whole'}"])
    assert steps[0] == 8
    assert steps[-1] > 2000
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
