# Everything runs in .venv, made from constraints.txt; the commands below are what a user would type.
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; print(1) if (3,11) <= sys.version_info[:2] <= (3,13) else None' 2>/dev/null),$(p),)))
BIN := .venv/bin
READY := .venv/.ready
COMPILED := pipeline/*/*.so

# Else every process of a test compiles TensorFlow's sources, where the installer has not: 7 s of processor time each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-gpu engines test-engines lint docs bench clean

help:
	@echo "make demo       convert, look at, train on and evaluate 1,797 digits, in demo/"
	@echo "make test       lint, types and the tests (some 25 minutes on 2 cores)"
	@echo "make test-slow  the long tests: many kills, sanitizers, accuracy on MNIST and CIFAR-10"
	@echo "make test-gpu   the tests that need a GPU"
	@echo "make engines    bring Flink and Spark (350 MB, needs java and mvn) for make test-engines, which"
	@echo "                tests a real Slurm, too: apt-get install slurm-wlm munge iproute2, and root"
	@echo "make docs       these pages as a site, with a reference made from the code, in docs/_build/html"
	@echo "make bench      the benchmarks, as ratios"
	@echo "make clean      remove .venv, demo/, the site and what was compiled"

$(READY): setup.py constraints.txt $(wildcard pipeline/*/*.[ch])
	@test -n "$(PYTHON)" || { echo "needs Python 3.11, 3.12 or 3.13; name one with: make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	@rm -f $(COMPILED)
	@echo "Installing the locked dependencies into .venv (1.1 GB to download, 3.6 GB on disk, some minutes the first time)"
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[all]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/python -m beam_jobs.convert --dataset=digits --data_dir=demo/digits
	$(BIN)/python -m pipeline.inspect demo/digits --png=demo/augmented.png
	$(BIN)/python -m trainer.run --data_dir=demo/digits --model_dir=demo/run --model=lenet --augment=shift \
	    --strategy=mirrored --num_replicas=2 --global_batch_size=64 --epochs=20
	@echo
	@echo "shards:       demo/digits"
	@echo "picture:      demo/augmented.png"
	@echo "checkpoints:  demo/run"
	@echo "TensorBoard:  $(BIN)/tensorboard --logdir=demo/run"

# Each warning is an error: a link to nothing, a page that is listed nowhere, a docstring that cannot be rendered.
docs: $(READY)
	$(BIN)/python -m sphinx --quiet --builder html --conf-dir docs --doctree-dir docs/_build/doctrees \
	    --fail-on-warning --keep-going --nitpicky . docs/_build/html
	@echo "the pages: docs/_build/html/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config=circles.toml

# Two runs: XLA's compiled functions stay in a test process until it ends.
test: $(READY)
	$(MAKE) --jobs=2 --output-sync=target lint docs
	$(BIN)/python -m pytest -m "not slow and not engines" -n 3 --dist loadfile tests/unit
	$(BIN)/python -m pytest -m "not slow and not engines" -n 3 --dist loadfile tests/integration

# The properties of make test, with all of their examples, too.
test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow or hypothesis" -n 2 --dist loadfile

# What a GPU's step costs is measured by benchmarks.gpu_report, in 8 minutes: benchmarks/README.md.
test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu tests/unit/pipeline/test_distribution.py tests/unit/trainer/test_topology.py \
	    tests/integration/test_virtual_replicas.py

engines: $(READY)
	$(BIN)/python -m tests.engines.fetch

test-engines: $(READY)
	$(BIN)/python -m pytest -m engines tests/integration/test_engines_clusters.py \
	    tests/integration/test_engines_sessions.py tests/integration/test_engines_slurm.py tests/integration/test_your_data.py

# Shorter rounds than benchmarks/RESULTS.md names, so that all end in half an hour on 2 idle cores.
bench: $(READY)
	$(BIN)/python -m benchmarks.input_throughput --batches=128,1024 --rounds=2 --seconds=0.5
	$(BIN)/python -m benchmarks.windowed_throughput --rounds=3 --seconds=1
	$(BIN)/python -m benchmarks.jpeg_throughput --rounds=5 --seconds=2
	$(BIN)/python -m benchmarks.cold_start --rounds=3
	$(BIN)/python -m benchmarks.distributed_iterator --rounds=5 --seconds=0.5
	$(BIN)/python -m benchmarks.mixture_throughput --rounds=3
	$(BIN)/python -m benchmarks.order_throughput
	$(BIN)/python -m benchmarks.convert_throughput --rounds=3 --seconds=30
	$(BIN)/python -m benchmarks.topology --rounds=5 --seconds=1

clean:
	rm -rf .venv demo docs/_build build *.egg-info $(COMPILED)
