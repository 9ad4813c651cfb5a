# An image of the commands, for one process per container (docs/clusters.md says which images to build).
ARG PYTHON=3.12

FROM python:${PYTHON}-bookworm AS build
ARG EXTRAS=train
# One more requirement, such as tensorflow[and-cuda].
ARG MORE=""
WORKDIR /source
RUN python -m venv /opt/stepfeed
COPY setup.py pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY stepfeed stepfeed
COPY beam_jobs beam_jobs
COPY pipeline pipeline
COPY trainer trainer
RUN /opt/stepfeed/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" ${MORE:+"${MORE}"}

FROM python:${PYTHON}-slim-bookworm
RUN useradd --uid 1000 --create-home --home-dir /work stepfeed
COPY --from=build /opt/stepfeed /opt/stepfeed
ENV PATH=/opt/stepfeed/bin:$PATH
# A number, which Kubernetes can tell from root.
USER 1000
WORKDIR /work
CMD ["stepfeed", "--help"]
