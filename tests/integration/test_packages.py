"""The packages: their contents, and that each extra, in a fresh environment, brings its commands' requirements.

The environments are made by uv, with the oldest and the newest versions that setup.py allows, where there is a package
index; 60 of them take an hour on two cores, and 9 GB for what is downloaded.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
import setuptools  # noqa: F401 (which builds them)

from tests.helpers.datasets import write_dataset
from tests.helpers.forked import ROOT
from tests.kernels import programs

VERSION = re.findall(r"\bversion=\"(.*)\"", (ROOT / "setup.py").read_text())[0]
PACKAGES = ("beam_jobs", "pipeline", "stepfeed", "trainer")
EXTENSIONS = ("pipeline/read/_unpack", "pipeline/operations/_operations")
BESIDE = {"LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.py"}  # the code
BUILD = "import setuptools.build_meta as backend, sys; getattr(backend, f'build_{sys.argv[1]}')(sys.argv[2])"
IS_COMPILED = "from pipeline.read import frames; print(frames.is_compiled())"


def tracked(*folders: str) -> set[str]:
    """Returns the files that git has, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to it is not known")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def run(command: list[str | pathlib.Path], cwd: pathlib.Path, timeout: float = 600, **environment: str) -> str:
    """Returns a command's output."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    for name in tracked():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    for extension in EXTENSIONS:  # what an earlier build has left
        (folder / "source" / f"{extension}.abi3.so").touch()
    run([sys.executable, "-c", BUILD, "sdist", folder], folder / "source")
    return folder / f"stepfeed-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def unpacked(sdist):
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent, filter="data")
    return sdist.parent / f"stepfeed-{VERSION}"


@pytest.fixture(scope="module")
def wheel(unpacked):
    """Built from the sdist alone."""
    run([sys.executable, "-c", BUILD, "wheel", unpacked.parent], unpacked)
    (built,) = unpacked.parent.glob("*.whl")
    return built


@pytest.fixture
def without_compiler(tmp_path):
    """A PATH without a compiler, but with the programs that pip and uv may call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "uname", "env", "git"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return str(folder)


def test_the_sdist_has_the_code_and_what_lies_beside_it(unpacked):
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    made = {name for name in found if name.startswith("stepfeed.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert found - made == tracked(*PACKAGES) | BESIDE


def test_the_wheel_has_the_code_and_what_it_reads(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not name.endswith("/")}
        info = f"stepfeed-{VERSION}.dist-info"
        assert archive.read(f"{info}/licenses/NOTICE") == (ROOT / "NOTICE").read_bytes()
        metadata = archive.read(f"{info}/METADATA").decode()
    about = {name for name in found if name.startswith(f"{info}/")}
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE", f"{info}/entry_points.txt"} <= about
    compiled = {f"{name}.abi3.so" for name in EXTENSIONS} if shutil.which("cc") else set()
    assert found - about == {name for name in tracked(*PACKAGES) if not name.endswith(".c")} | compiled
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11,<3.14\n" in metadata


def test_the_image_is_built_from_what_the_sdist_has():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == BESIDE | {*PACKAGES, "constraints.txt"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="no stable interface without the lock")
def test_one_wheel_serves_every_python(wheel):
    assert wheel.name.startswith(f"stepfeed-{VERSION}-cp311-abi3-")


@pytest.mark.slow
def test_without_a_compiler_the_sdist_installs_and_reads_the_same(sdist, tmp_path, without_compiler):
    write_dataset(tmp_path / "data")
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    run([*pip, f"--target={target}", sdist], tmp_path, PATH=without_compiler)
    assert not list(target.rglob("*.so"))
    read = "import pipeline; print(pipeline.__file__, *pipeline.RandomAccess('data', 'train')[3]['image'].ravel()[:8])"
    here, there = (run([sys.executable, "-c", read], tmp_path, PYTHONPATH=str(path)).split() for path in (ROOT, target))
    assert there[0].startswith(str(target))
    assert there[1:] == here[1:]
    assert run([sys.executable, "-c", IS_COMPILED], tmp_path, PYTHONPATH=str(target)) == "False\n"


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.findall(r"^## \[([0-9.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == VERSION
    for page in ("docs/clusters.md", "docs/training_clusters.md"):
        assert set(re.findall(r"/stepfeed-\w+:([0-9.]+)", (ROOT / page).read_text())) == {VERSION}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_compiles_what_has_changed(tmp_path):
    names = [name for name in tracked("pipeline") if name.endswith((".c", ".h"))]
    assert len(names) >= 7
    for name in ("Makefile", "setup.py", "constraints.txt", *names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready").touch()
    os.utime(tmp_path / ".venv/.ready", (2, 2))
    make = ["make", "PYTHON=python3"]  # else it looks for one, each time
    asked = [*make, "--question", ".venv/.ready"]
    run(asked, tmp_path)
    for name in names:
        os.utime(tmp_path / name)
        done = subprocess.run(asked, cwd=tmp_path, check=False)
        assert done.returncode == 1, name
        os.utime(tmp_path / name, (1, 1))
    libraries = [tmp_path / f"{extension}.abi3.so" for extension in EXTENSIONS]
    for library in libraries:
        library.touch()
    run([*make, "clean"], tmp_path)
    assert not any(library.exists() for library in libraries)


# ---- other compilers ----

# Functions of one table take the same arguments, used or not.
FLAGS = ("-O3", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-c", "-std=gnu11")
ZIG = ("aarch64-macos", "x86_64-macos", "aarch64-linux-gnu", "x86_64-linux-gnu", "aarch64-linux-musl")


@pytest.fixture(scope="session")
def zig(tmp_path_factory):
    """A compiler with the headers of other systems."""
    return installed("ziglang", tmp_path_factory) / "ziglang" / "zig"


def compiles(source: programs.Source, compiler: list[str | pathlib.Path], folder: pathlib.Path) -> None:
    include = f"-I{sysconfig.get_path('include')}" if source.is_of_python else "-Wno-unused"
    for file in source.files:
        run([*compiler, *source.flags, *FLAGS, include, ROOT / file, "-o", folder / "object.o"], ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("target", ZIG)
def test_the_c_code_compiles_for_other_systems(target, zig, tmp_path):
    for source in programs.sources():
        compiles(source, [zig, "cc", "-target", target], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")
def test_the_c_code_compiles_with_clang(tmp_path):
    for source in programs.sources():
        compiles(source, ["clang"], tmp_path)


# ---- extras, in fresh environments ----

PHOTOS = """
import pathlib, sys
import numpy as np, PIL.Image
if "heic" in sys.argv:
    import pillow_heif
    pillow_heif.register_heif_opener()
for label in range(2):
    folder = pathlib.Path("photos", "ab"[label])
    folder.mkdir(parents=True)
    for row in range(20):
        kind = sys.argv[1 + row % (len(sys.argv) - 1)]
        pixels = np.random.default_rng(row).integers(0, 100, (32, 32, 3), np.uint8) + np.uint8(100 * label)
        PIL.Image.fromarray(pixels).save(folder / f"{row}.{kind}")
"""
PARQUET = """
import pathlib
import pyarrow, pyarrow.parquet
rows = [path.read_bytes() for path in sorted(pathlib.Path("photos").rglob("*.png"))]
images = [{"bytes": row, "path": None} for row in rows]
table = pyarrow.table({"image": images, "label": [i % 2 for i in range(len(rows))]})
pathlib.Path("parquet").mkdir()
pyarrow.parquet.write_table(table, "parquet/train-0.parquet")
"""
PREPARED = """
import numpy as np, tensorflow_datasets as tfds
class Shapes(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        features = {"image": tfds.features.Image(shape=(8, 8, 3)), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))
    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}
    def _generate_examples(self):
        for row in range(20):
            yield row, {"image": np.full((8, 8, 3), row, np.uint8), "label": row % 2}
Shapes(data_dir="prepared").download_and_prepare()
"""
READ = """
import sys
from stepfeed import RandomAccess
from pipeline.read import frames
assert len(RandomAccess(sys.argv[1], "train")) == 1429, "records"
assert RandomAccess(sys.argv[1], "test")[7]["image"].shape == (28, 28, 1)
assert frames.is_compiled()
"""
FEED = """
from pipeline import input_fn, operations
images, labels, weights = next(iter(input_fn("digits", global_batch_size=64, training=True, augment="shift")))
assert images.shape == (64, 28, 28, 1)
assert operations.is_compiled()
"""
TRAIN = "train digits --model_dir=run --model=lenet --augment=shift --global_batch_size=64 --train_steps=10"
CONVERT = "convert --dataset=image_folder --source=photos --data_dir=data --split=train:0.5,test:0.5"

# By extras, what is run with them in a folder with the data set `digits`: commands, as text, and Python with arguments.
# BUCKET and ROOT stand for an object store's and the project's.
USES: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "": ("--version", ("-c", READ, "digits"), "audit digits --global_batch_size=64", "train --help"),
    "train": (
        (
            "-c",
            FEED,
        ),
        f"{TRAIN} --strategy=mirrored --num_replicas=2",
        "inspect digits --png=batch.png",
        "evaluate --model_dir=run",
        "export --model_dir=run --output=exported --format=saved_model,keras",
        ("-c", PHOTOS, "png"),
        "predict --model_dir=run photos",
        "bench digits --global_batch_size=64 --rounds=1",
    ),
    "convert": (
        ("-c", PHOTOS, "png"),
        CONVERT,
        "validate data",
        (
            "-c",
            PARQUET,
        ),
        "convert --dataset=parquet --source=parquet --data_dir=of_parquet --split=train:0.5,test:0.5",
    ),
    "convert,train": (
        (
            "-c",
            PREPARED,
        ),
        "convert --dataset=tfds:shapes --source=prepared --data_dir=of_tfds",
        ("-c", PHOTOS, "png", "jpg"),
        CONVERT,
        "train data --model_dir=run --model=cifar10_cnn --global_batch_size=4 --train_steps=4",
    ),
    "remote": (("-c", READ, "BUCKET/digits"), "audit BUCKET/digits --global_batch_size=64"),
    "app": (("-c", PHOTOS, "png", "heic"), CONVERT, "train data --train_steps=4", "watch data-run --json"),
    "page,train": (TRAIN, "watch run --json"),
    "export,train": (TRAIN, "export --model_dir=run --output=exported --format=onnx"),
    "convert,images": (("-c", PHOTOS, "heic", "avif"), CONVERT, "validate data"),
    "convert,near": (("-c", PHOTOS, "png"), CONVERT, "validate data --deep --near"),
    "convert,demo": ("convert --dataset=digits --data_dir=again", "validate again"),
    "demo,train": (TRAIN, "inspect digits --png=batch.png"),
    "convert,docs,train": (
        ("-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-c", "ROOT/docs", "-b", "html", "ROOT", "html"),
    ),
}
PYTHONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = ("lowest-direct", "highest")


def installed(package: str, factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a folder with a package from the index; skips if there is none."""
    folder = factory.mktemp(package)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=0", "--timeout=20", f"--target={folder}"]
    done = subprocess.run([*pip, package], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"no package index that has {package}")
    return folder


@pytest.fixture(scope="session")
def uv(tmp_path_factory):
    return shutil.which("uv") or str(installed("uv", tmp_path_factory) / "bin" / "uv")


def interpreter(version: str) -> str:
    """Returns the path of a Python; skips if there is none. pyenv also has some outside the PATH."""
    versions = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    paths = [shutil.which(f"python{version}"), *map(str, versions.glob(f"{version}.*/bin/python{version}"))]
    for path in filter(None, paths):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:  # pyenv's own python3.12 may be a script that finds none
            return path
    pytest.skip(f"no Python {version}")


@pytest.fixture(params=PYTHONS)
def python(request):
    return interpreter(request.param)


@pytest.fixture
def venv(tmp_path):
    """The folder of an environment, of which some have 2 GB; so none is kept."""
    yield tmp_path / "venv"
    shutil.rmtree(tmp_path / "venv", ignore_errors=True)


def test_every_extra_is_installed_and_used(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"stepfeed-{VERSION}.dist-info/METADATA").decode()
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))
    assert {extra for uses in USES for extra in uses.split(",")} - {""} == extras - {"all", "bench", "dev"}


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(platform.system() != "Linux", reason="an environment's programs are found as on Linux")
@pytest.mark.parametrize("extras", USES, ids=lambda extras: extras or "none")
@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_an_extra_brings_what_its_commands_need(
    extras, resolution, python, uv, wheel, without_compiler, digits, venv, tmp_path, request
):
    work, known = tmp_path / "work", {"ROOT": str(ROOT)}
    work.mkdir()
    (work / "digits").symlink_to(digits)
    if "remote" in extras:
        bucket = request.getfixturevalue("bucket")
        known["BUCKET"] = str(bucket)
        for path in (path for path in digits.rglob("*") if path.is_file()):
            (bucket / "digits" / str(path.relative_to(digits))).write_bytes(path.read_bytes())

    run([uv, "venv", "--quiet", f"--python={python}", venv], tmp_path)
    wanted = f"stepfeed[{extras}] @ {wheel.as_uri()}" if extras else f"stepfeed @ {wheel.as_uri()}"
    install = [uv, "pip", "install", "--quiet", f"--python={venv}/bin/python", f"--resolution={resolution}", wanted]
    path = f"{venv}/bin:{without_compiler}"  # so that a version without a wheel for this Python is found out
    run(install, tmp_path, 1200, PATH=path)
    for use in USES[extras]:
        words = ["-m", "stepfeed", *use.split()] if isinstance(use, str) else use
        words = [re.sub("BUCKET|ROOT", lambda found: known[found[0]], word) for word in words]
        run([venv / "bin/python", "-P", *words], work, 1200, PATH=path)
