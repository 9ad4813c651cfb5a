"""The page of real runs: the content of its files, and in a browser, while a job loses a worker, and afterwards."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import time

import numpy as np
import PIL.Image
import pytest

from pipeline import images, input_fn
from pipeline.index.__main__ import main as index
from tests.helpers import forked
from tests.helpers.launches import Launch, left_within
from tests.helpers.runs import finish, scalars, start_workers, train
from tests.integration import parameter_server_tasks, slow_task
from trainer.callbacks.tensorboard import EventFile
from trainer.watching import batch
from trainer.watching.snapshot import straggler_of
from trainer.watching.source import RunSource

FLAGS = (
    *("--model=softmax_regression", "--global_batch_size=64", "--augment=shift", "--epochs=2", "--steps_per_loop=5"),
    *("--summary_every=5", "--eval_every=20", "--keep_best=2", "--checkpoint_every=20", "--image_every=20"),
)


@pytest.fixture(scope="module")
def ended(digits, tmp_path_factory):
    """The folder of a run that was resumed with another learning rate, and has ended."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    for more in (("--epochs=1",), ("--learning_rate=0.02",)):
        train(digits, folder, *FLAGS, *more)
    return folder


def test_a_run_is_told_by_its_files(ended):
    source = RunSource(ended)
    found, curves = source.snapshot(), source.curves()
    assert (found.state, found.kind, found.step, found.last_step, found.saved_step) == (
        "done",
        "one_device",
        46,
        46,
        46,
    )
    assert (found.epoch, found.epochs, found.problems) == (2.0, 2.0, ())
    logged = {key: value for key, value in scalars(ended / "logs").items() if key[0] in curves}
    shown = {
        (tag, step): value
        for tag, one in curves.items()
        for step, value in zip(one["steps"], one["values"], strict=True)
    }
    assert shown == pytest.approx(logged)
    assert len(shown) > 60
    assert [row.step for row in found.evaluations] == [20, 23, 40, 46]
    assert [row.values["accuracy"] for row in found.evaluations] == [
        logged["eval/test/accuracy", row.step] for row in found.evaluations
    ]
    best = max(found.evaluations, key=lambda row: row.values["accuracy"])
    assert (best.rank, best.kept, found.ranked_by) == (1, True, "accuracy")
    (member,) = found.members
    assert (member.name, member.state, member.devices, member.step) == ("worker 0", "done", ("CPU:0",), 46)
    (change,) = found.changes
    assert change.step == 23
    assert {name for name, *_ in change.flags} == {"learning_rate", "epochs"}
    assert [event.kind for event in found.events].count("start") == 2
    ((data,),) = (found.data,)
    assert (data.epoch, data.seen, data.records, data.steps) == (1, 1429, 1429, (23, 23))
    assert (found.images, found.images_step) == (8, 40)
    assert PIL.Image.open(io.BytesIO(source.image(0))).size == (28, 28)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "why", "least"),  # several batches are prefetched
    [
        (slow_task.COMPUTING, "has its gradients", 0.6),
        pytest.param(slow_task.READING, "waits for its input", 0.2, marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_slow_is_named_with_the_time_that_the_other_waits(slow, why, least, tmp_path, monkeypatch):
    (data := tmp_path / "data").mkdir()
    parameter_server_tasks.write(data, 120)
    index([str(data), "--split=train:train-*.tfrecord"])
    monkeypatch.setenv("SLOW", slow)
    flags = ("--task=tests.integration.slow_task:Slow", "--eval_split=none", "--global_batch_size=12", "--epochs=12")
    ended = finish(*start_workers(data, [tmp_path / "run"] * 2, *flags, "--steps_per_loop=4"))
    assert [code for code, *_ in ended] == [0, 0], ended  # stderr has a warning: the task calls Python
    members = RunSource(tmp_path / "run").snapshot().members
    found = straggler_of([dataclasses.replace(one, state="running") for one in members], True)
    assert (found.name, found.why.startswith(why)) == ("worker 1", True), found
    (lag,) = re.findall(r" ([0-9.]+) ms per step", found.why)
    assert least < float(lag) / 1e3 / slow_task.SECONDS < 2.0


def test_the_batch_of_a_step_is_that_which_the_model_gets(ended, digits):
    picture = PIL.Image.open(io.BytesIO(batch._picture(RunSource(ended).config(), 30))).convert("RGB")
    rows, _, _ = next(
        input_fn(
            digits, "train", global_batch_size=64, training=True, augment="shift", start_step=30
        ).as_numpy_iterator()
    )
    for i in (0, 9, 31):
        left, top = i % 8 * 70, i // 8 * 84
        tile = picture.crop((left, top, left + 64, top + 64))
        expected = PIL.Image.fromarray(images.as_rgb(rows[i])).resize((64, 64), PIL.Image.Resampling.NEAREST)
        np.testing.assert_array_equal(np.asarray(tile), np.asarray(expected.convert("RGB")))


def test_a_batch_is_drawn_by_another_process(ended, monkeypatch):
    def run(command, **options):
        assert options["env"]["CUDA_VISIBLE_DEVICES"] == "-1"
        assert command[1:] == ["-P", "-m", "trainer.watching.batch", str(ended), "7"]
        return subprocess_run(["sh", "-c", "echo one >&2; echo trainer.watching.batch: no >&2; exit 2"], **options)

    subprocess_run = batch.subprocess.run
    monkeypatch.setattr(batch.subprocess, "run", run)
    with pytest.raises(batch.DataError, match=r"^no$"):
        batch.drawn(ended, 7)


@pytest.fixture(scope="module")
def chromium():
    """A headless browser."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    pytest.importorskip("uvicorn", reason="needs starlette, uvicorn and jinja2: pip install 'stepfeed[page]'")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("needs Chromium: apt-get install chromium")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def served(*runs):
    """Context of a page about runs; yields its URL."""
    process = forked.Process(["-m", "trainer.watch", *runs, "--port=0"], {"PYTHONUNBUFFERED": "1"})
    try:
        yield process.stdout.readline().split()[0]
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def opened(chromium, url, width=1280, scheme="light", allowed=r"(?!)"):
    """Context of a page in a tab; its console may have only what is allowed, and all requests go to its server."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith((url, "blob:", "data:")) or wrong.append(request.url))
    page.goto(url)
    page.wait_for_selector("#curves canvas")
    yield page
    context.close()
    assert [line for line in wrong if not re.search(allowed, line)] == []


def wait(page, holds, seconds=120.0):
    """Waits until an expression holds in the page, whose policy forbids playwright's own way to wait."""
    end = time.monotonic() + seconds
    while not page.evaluate(holds):
        assert time.monotonic() < end, (holds, page.locator("main").inner_text())
        page.wait_for_timeout(100)


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


COLOURS = """() => [...document.querySelectorAll("h1, h2, td, th, dt, dd, p, li span, li time, summary, button")]
  .filter((one) => one.checkVisibility() && one.textContent.trim()).map((one) => getComputedStyle(one).color)"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_width_and_can_be_read(chromium, ended, scheme):
    with served(ended) as url:
        for width in (360, 412, 600, 768, 1024, 1280, 1440, 1920):
            with opened(chromium, url, width, scheme) as page:
                overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert overflow == 0, width
                for box in page.locator("#curves figure").all():
                    (of_box, of_plot) = box.bounding_box(), box.locator("canvas").bounding_box()
                    assert of_plot["width"] <= of_box["width"] <= width
                cut = """() => [...document.querySelectorAll("td, th, dd, p")].filter(
                    (one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1).length"""
                assert page.evaluate(cut) == 0
        with opened(chromium, url, 1280, scheme) as page:
            paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert (paper > 0.5) == (scheme == "light")
            for colour in set(page.evaluate(COLOURS)):
                light, dark = sorted((paper, luminance(colour)), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, colour  # WCAG 2, level AA


@pytest.mark.slow
def test_it_is_used_by_keyboard(chromium, ended):
    with served(ended) as url, opened(chromium, url) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
    with served(ended) as url, opened(chromium, url) as page:
        for _ in range(2):
            page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert page.evaluate("document.getElementById('log').checked")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.querySelector('#axis input:checked').value") == "time"
        assert page.locator("#curves figure").first.locator(".u-legend th").first.inner_text().startswith("time")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Tab")
        figure = page.locator("#curves figure").first
        assert figure.evaluate("(one) => one === document.activeElement")
        legend = figure.locator(".u-legend td").first
        page.keyboard.press("Home")
        wait(page, "document.querySelector('.u-legend td').textContent === '5'", 10)
        page.keyboard.press("ArrowRight")
        wait(page, "document.querySelector('.u-legend td').textContent === '10'", 10)
        page.keyboard.press("End")
        wait(page, "document.querySelector('.u-legend td').textContent === '46'", 10)
        assert legend.inner_text() == "46"
        page.locator("#flags summary").focus()
        page.keyboard.press("Enter")
        page.wait_for_timeout(3000)  # it is looked at again meanwhile
        assert page.locator("#flags dd").first.is_visible()


@pytest.mark.slow
def test_several_runs_are_compared(chromium, ended, tmp_path):
    shutil.copytree(ended, tmp_path / "other")
    with served(ended, tmp_path / "other") as url, opened(chromium, url) as page:
        assert page.locator("#curves figure").first.locator(".u-legend .u-series").count() == 1 + 4
        page.get_by_role("link", name="other").click()
        assert page.locator("h1").inner_text().startswith("other")


@pytest.mark.slow
def test_a_metric_of_a_task_has_a_curve_and_times_are_whole_seconds(chromium, tmp_path):
    events = EventFile(tmp_path / "run" / "logs", 0)
    for step in (10, 20):
        events.scalars(step, {"train/total_loss_average": 1.0, "train/epoch_total_loss": 1.0, "train/epoch_top_5": 0.5})
        events.scalars(step, {"eval/test/loss": 1.0, "eval/test/top_5": 0.25, "eval/test/f(x)": 7.0})
        time.sleep(0.4)
    with served(tmp_path / "run") as url, opened(chromium, url) as page:
        assert page.locator("#curves figcaption").all_inner_texts() == ["Loss", "top_5", "f(x)"]
        legends = page.locator("#curves .u-legend").all_inner_texts()
        page.get_by_label("time").check()
        assert page.evaluate("charts.get('Loss').plot.axes[0]._splits.every(Number.isInteger)")  # whole seconds
        page.get_by_label("step", exact=True).check()
        assert ["".join(legend.split()) for legend in legends[1:]] == [
            "step20training0.5000test0.2500",
            "step20test7.000",
        ]


@pytest.mark.slow
def test_a_batch_is_drawn_on_demand(chromium, ended):
    with served(ended) as url, opened(chromium, url) as page:
        assert page.evaluate("[...document.querySelectorAll('.images img')].every((one) => one.naturalWidth === 28)")
        page.get_by_role("button", name="Draw the batch").click()
        wait(page, "document.querySelector('#batch img').naturalWidth > 0")
        assert page.locator("#batch [role=status]").inner_text() == "step 45"


@pytest.mark.slow
def test_files_that_are_missing_and_half_written_are_named(chromium, ended, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    with served(run) as url, opened(chromium, url) as page:
        (run / "launch" / "status.json").write_text('{"version": 1, "ti')
        (events,) = sorted((run / "logs").glob("events*"))[-1:]
        with events.open("ab") as file:
            file.write(b"\x10\0\0\0")
        wait(page, "document.querySelector('footer')?.textContent.includes('status.json is not JSON')")
        assert "ends inside a record" in page.locator("footer").inner_text()
        assert page.locator("h1").inner_text().startswith("run")
        (run / "launch" / "status.json").unlink()
        shutil.rmtree(run / "logs")
        wait(page, "document.querySelector('footer')?.textContent.includes('no files of TensorBoard')")
        shutil.rmtree(run)
        wait(page, "document.querySelector('h1 .state').textContent === 'nothing'")


@pytest.mark.slow
def test_it_follows_a_job_that_loses_a_worker_and_takes_it_back(chromium, digits, tmp_path):
    trainer = (*(one for one in FLAGS if not one.startswith("--epochs")), f"--data_dir={digits}", "--epochs=2000")
    job = Launch(tmp_path / "run", ("--num_workers=2", "--page", "--restart_delay=2"), trainer)
    try:
        job.wait_for_step(30)
        lines = [json.loads(line)["text"] for line in (job.folder / "events.jsonl").read_text().splitlines()]
        (url,) = [line.split()[0] for line in lines if line.startswith("http://127.0.0.1:")]
        with opened(chromium, url) as page:
            wait(page, "document.querySelector('h1 .state').textContent === 'training'")
            step = "Number(document.querySelector('.facts dd').textContent.split(' ')[0].replaceAll(',', ''))"
            before, points = page.evaluate(step), page.evaluate("charts.get('Loss').plot.data[0].length")
            wait(page, f"{step} > {before} && charts.get('Loss').plot.data[0].length > {points}")
            assert page.locator(".cause").count() == 0
            rows = page.locator("section[aria-labelledby=members-title] tbody tr:not(.more)")
            assert [row.locator("th").inner_text().split(" pid")[0] for row in rows.all()] == ["worker 0", "worker 1"]
            os.kill(job.status()["processes"][1]["pid"], signal.SIGKILL)
            wait(page, "document.querySelector('.cause')?.textContent.includes('was killed by SIGKILL')")
            assert "worker 1" in page.locator(".cause").inner_text()
            wait(page, "document.querySelector('.events').textContent.includes('starting all processes again')")
            wait(page, "document.querySelector('h1 .state').textContent === 'training'")
            wait(page, "document.querySelector('.events').textContent.includes('training resumes from step')")
            after = page.evaluate(step)
            wait(page, f"{step} > {after}")
            assert [row.locator("[data-name=restarts]").inner_text() for row in rows.all()] == ["1", "1"]
        os.kill(job.process.pid, signal.SIGTERM)
        code, _, err = job.end()
        assert code == 75, err
    finally:
        job.process.kill()
        left_within(60, job.pids())
    with served(tmp_path / "run") as url, opened(chromium, url) as page:
        assert page.locator("h1 .state").inner_text() == "stopped"
        assert "was killed by SIGKILL" in page.locator(".events").inner_text()


@pytest.mark.slow
def test_a_page_whose_server_has_gone_says_so_and_stays(chromium, ended):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(served(ended))
        with opened(chromium, server, allowed="ERR_CONNECTION_REFUSED|Failed to fetch") as page:
            stack.close()
            wait(page, "document.getElementById('connection').textContent.startsWith('no answer for')")
            assert page.locator("h1").inner_text().startswith("run")
