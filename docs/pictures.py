"""Draws the pictures of a run's terminal, of its page and of a card: python docs/pictures.py [terminal page card].

Each picture carries, as the PNG's text `text`, what is written on it, so that a test finds a picture that shows words
that the code no longer prints. The page and the cards need Chromium and the extra `page`.
"""

from __future__ import annotations

import html
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import PIL.PngImagePlugin

DOCS = pathlib.Path(__file__).resolve().parent
TEXT = "text"  # key of the PNG's text
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COLUMNS = 116  # of the terminal
PORT = 8450
TRAIN = "stepfeed train digits --model_dir=run --augment=shift --epochs=20 --strategy=mirrored --num_replicas=2"
LAUNCH = (
    "stepfeed launch --num_workers=2 -- digits --model_dir=two --model=lenet --augment=shift --global_batch_size=64"
)
MORE = ("--epochs=400", "--checkpoint_every=200", "--eval_every=200", "--keep_best=3", "--image_every=500")
UNREAD = "There are no curves yet."
BAR = re.compile(r"^\s*(\d+)%\|")


def saved(picture: PIL.Image.Image, name: str, text: str) -> None:
    """Writes a picture with the text that it shows."""
    content = PIL.PngImagePlugin.PngInfo()
    content.add_itxt(TEXT, text)
    picture.save(DOCS / name, pnginfo=content, optimize=True)


def terminal(folder: pathlib.Path) -> None:
    """Draws the first epochs of a run as its terminal shows them."""
    printed, live = watched(TRAIN.split(), folder, until="epoch 7 of")
    lines = [f"$ {TRAIN}", *printed.splitlines()]
    lines = [line[at : at + COLUMNS] for line in lines for at in range(0, max(len(line), 1), COLUMNS)]
    font = PIL.ImageFont.truetype(str(mono()), 15)
    wide, high, edge = round(font.getlength("x" * COLUMNS)), 19, 14
    picture = PIL.Image.new("RGB", (wide + 2 * edge, high * (len(lines) + 1) + 2 * edge), "#1e1e1e")
    draw = PIL.ImageDraw.Draw(picture)
    for row, line in enumerate(lines):
        draw.text((edge, edge + row * high), line, "#dcdcdc", font)
    top = edge + len(lines) * high
    for at, letter in enumerate(live[:COLUMNS]):
        left = edge + round(font.getlength("x" * at))
        if letter in "█▉▊▋▌▍▎▏":
            draw.rectangle((left, top + 1, left + round(font.getlength("x")), top + high - 2), "#5cc45c")
        else:
            draw.text((left, top), letter, "#dcdcdc", font)
    saved(picture, "terminal.png", "\n".join([*lines, live]))


def mono() -> pathlib.Path:
    """Returns the file of a font of equal widths."""
    import matplotlib  # noqa: PLC0415, brings the font

    return pathlib.Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSansMono.ttf")


def watched(command: Sequence[str], folder: pathlib.Path, until: str) -> tuple[str, str]:
    """Runs a command on a terminal until it has printed some words; returns its lines, and the live line below them."""
    process, ours = pty.fork()
    if not process:
        os.chdir(folder)
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": "40"}
        os.execvp(command[0], command)
    screen = ""
    while until not in screen:
        screen += os.read(ours, 1 << 16).decode()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        screen += os.read(ours, 1 << 16).decode()
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).replace("\r\n", "\n")
    shown = [line.rsplit("\r", 1)[-1].rstrip() for line in plain.split("\n")]
    bars = [line for line in re.split(r"[\r\n]", plain) if BAR.match(line)]
    return "\n".join(line for line in shown if line and not BAR.match(line)), bars[-1].rstrip()


def page(folder: pathlib.Path) -> None:
    """Draws the page of a job of two workers, of which one was killed and has come back."""
    log = (folder / "launch.log").open("w")
    job = subprocess.Popen([*LAUNCH.split(), *MORE], cwd=folder, stdout=log, stderr=log)
    server = subprocess.Popen(["stepfeed", "watch", "two", f"--port={PORT}"], cwd=folder, stdout=log, stderr=log)
    try:
        wait_for((folder / "two/ckpt-1200.index").exists)
        subprocess.run(["pkill", "-KILL", "-n", "-f", "trainer.run.*--model_dir=two"], check=True)
        wait_for((folder / "two/ckpt-2800.index").exists)
        wait_for(lambda: UNREAD not in shot(f"http://127.0.0.1:{PORT}/", "watch.png", 1440, 1140))
    finally:
        for each in (job, server):
            each.terminate()
            each.wait()


def wait_for(happens: Callable[[], bool]) -> None:
    """Waits until something has happened, for ten minutes at most."""
    end = time.monotonic() + 600
    while not happens():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.1)


def card(folder: pathlib.Path) -> None:
    """Draws the card of the digits."""
    shot((folder / "digits/card.html").as_uri(), "card.png", 1000, 760)


def shot(url: str, name: str, width: int, height: int) -> str:
    """Draws what a browser shows of a page; returns what is written on it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"{name} needs one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as user:
        flags = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={user}"]
        flags += [f"--window-size={width},{height}", "--virtual-time-budget=4000"]
        made = pathlib.Path(user, name)
        subprocess.run([*flags, f"--screenshot={made}", url], check=True, capture_output=True, timeout=120)
        dom = subprocess.run(
            [*flags, "--dump-dom", url], check=True, capture_output=True, timeout=120, text=True
        ).stdout
        colours = PIL.Image.open(made).convert("RGB").quantize(256, dither=PIL.Image.Dither.NONE)
        saved(colours, name, words_of(dom))
        return words_of(dom)


def words_of(page: str) -> str:
    """Returns what is written on a page of HTML, a text between two tags per line."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page.partition("<body")[2].partition(">")[2], flags=re.DOTALL)
    lines = html.unescape(re.sub(r"<[^>]*>", "\n", body)).split("\n")
    return "\n".join(line.strip() for line in lines if line.strip())


DRAWN = {"terminal": terminal, "page": page, "card": card}


def main(names: Sequence[str]) -> None:
    """Draws some pictures, or all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run(["stepfeed", "convert", "--dataset=digits", "--data_dir=digits"], cwd=folder, check=True)
        for drawn in names or DRAWN:
            DRAWN[drawn](folder)


if __name__ == "__main__":
    main(sys.argv[1:])
