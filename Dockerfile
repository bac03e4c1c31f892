# The node, or any other command, in a container.
#
#   CPU:   docker build -t smg .
#   CUDA:  docker build -t smg --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
#
# TORCH holds what pip is given to install torch. Without a GPU give the options that pytorch.org names for a CPU, as
# --build-arg TORCH="torch --OPTION ...", or pip fetches gigabytes of GPU libraries.
#
#   docker run --rm --user "$(id -u)" -v "$PWD:/work" smg predict model scans --out masks
ARG BASE=debian:12-slim
# hadolint ignore=DL3006
FROM ${BASE}

ARG TORCH=torch
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 \
    SMG_CACHE=/tmp/smg PATH=/opt/smg/bin:$PATH

# Versions of Python are the base's own; those of packages are in constraints.txt.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/smg

WORKDIR /source
COPY constraints.txt ./
# torch first, so that the package takes the build that is there. TORCH may hold several words.
# hadolint ignore=DL3042,DL3013,SC2086
RUN pip install --constraint constraints.txt ${TORCH}

COPY pyproject.toml README.md LICENSE ./
COPY smg ./smg
# hadolint ignore=DL3042
RUN pip install --constraint constraints.txt '.[serve,export,monai]' \
    && useradd --create-home --uid 10001 smg

USER 10001
WORKDIR /work
ENTRYPOINT ["smg"]
CMD ["--help"]
