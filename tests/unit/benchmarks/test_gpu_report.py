"""The report for GPU machines: its items run in processes of their own, and its table compares them."""

import json

import pytest

from benchmarks import gpu_report, inputs
from benchmarks.gpu_items import ITEMS
from pipeline.errors import UsageError


def rounds(name, *rates):
    return [{"kind": "round", "name": name, "round": i, "rate": rate, "ms": 1e3 / rate} for i, rate in enumerate(rates)]


def test_ratios_are_to_ours_of_the_same_round():
    results = [*rounds("ours", 100.0, 50.0, 200.0), *rounds("keras", 150.0, 100.0)]  # one was cut off
    results.append({"kind": "made", "name": "keras", "seconds": 2.5})
    lines = gpu_report.table({"resnet50": {"results": results}})
    assert lines[2].split() == ["keras", "125", "1.75", "(1.50", "to", "2.00)", "8.33", "-", "2.5"]


def test_bits_of_two_processes_and_of_two_topologies():
    def bits(**digests):
        return {"results": [{"kind": "bits", "name": n, "sha256": d, "rate": 1.0} for n, d in digests.items()]}

    same = {"V=4": "a" * 64, "V=4 mirrored": "a" * 64}
    lines = gpu_report.table({"bits 1": bits(**same, jit="b" * 64), "bits 2": bits(**same, jit="c" * 64)})
    assert [line.split(";")[0] for line in lines] == [
        "bits, op determinism, V=4: SAME BITS in 2 processes",
        "bits, op determinism, V=4 mirrored: SAME BITS in 2 processes",
        "bits, op determinism, jit: OTHER BITS in 2 processes",
        "bits, V=4: one device and mirrored agree",
    ]
    assert gpu_report.table({"bits 1": bits(**{**same, "V=4": "d" * 64})})[-1].endswith("DIFFER")


def run(folder, only, data="no-data", *more):
    out = folder / "report.json"
    gpu_report.main([f"--cifar={data}", f"--photos={data}", f"--out={out}", f"--only={only}", *more])
    return json.loads(out.read_text())


def test_an_item_that_fails_leaves_its_reason_and_the_next_one_runs(tmp_path, capsys):
    report = run(tmp_path, "torch", "no-data", "--minutes=0.01")
    assert report["items"]["torch"]["results"] == [{"kind": "skipped", "name": "torch", "why": "the minutes are over"}]
    report = run(tmp_path, "torch", "no-data", "--cpu_smoke")
    found = report["items"]["torch"]
    assert [one["kind"] for one in found["results"]] == ["skipped"]
    assert found["exit"] == 0
    assert "torch: skipped: No module named 'torch'" in capsys.readouterr().out


def test_an_unknown_item_is_refused():
    with pytest.raises(UsageError, match="resnet"):
        gpu_report.main(["--cifar=a", "--photos=b", "--only=resnet51"])


@pytest.mark.slow
def test_all_items_run_on_a_cpu(tmp_path):
    cifar = inputs.make_cifar(tmp_path, 600, "--image_encoding=jpeg")
    report = run(tmp_path, "", cifar, "--cpu_smoke")
    for name, found in report["items"].items():
        assert found["exit"] == 0
        kinds = {one["kind"] for one in found["results"]}
        assert "failed" not in kinds, (name, found["results"])
        measured = {one["name"] for one in found["results"] if one["kind"] in ("round", "bits", "input")}
        assert measured == set(ITEMS[name].contestants) or name == "torch"
    assert sorted(path.name for path in tmp_path.glob("*.xplane.pb")) == [
        f"report.json.resnet50.{name}.xplane.pb" for name in ("keras_jit", "ours", "ours_nojit")
    ]
    assert "SAME BITS" in "\n".join(report["table"])
    assert "OTHER BITS" not in "\n".join(report["table"])
