# syntax=docker/dockerfile:1
#
#   docker build -t sglang-plug .                                   # for the CPU
#   docker build -t sglang-plug:cuda --build-arg ACCELERATOR=cuda . # for CUDA
#
# The build stage needs a network, the running container none. See docs/containers.md.

ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG ACCELERATOR=cpu
ARG EXTRAS=vision
# PyTorch's index of builds for the CPU, or a mirror of it. Empty: pip's own index, whose builds have the libraries of CUDA.
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/sglang-plug/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/var/cache/pip
RUN python -m venv /opt/sglang-plug
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY builtin_models builtin_models
COPY builtin_backends builtin_backends
COPY api api
# The project's dependencies have the bounds of pyproject.toml, and the cache is a mount that no layer contains.
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/var/cache/pip \
    case "${ACCELERATOR}" in \
        cpu) torch="$(python -c 'import tomllib; print(next(d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if d.startswith("torch")))')" \
            && pip install "${torch}" ${TORCH_CPU_INDEX:+--index-url "${TORCH_CPU_INDEX}"} \
            && pip install ".[${EXTRAS}]" ;; \
        cuda) pip install ".[gpu,${EXTRAS}]" ;; \
        *) echo "ACCELERATOR is cpu or cuda, not ${ACCELERATOR}" >&2; exit 1 ;; \
    esac
# The kernels for CPUs with AVX-512, whatever the processor of this machine: nothing is compiled when the server starts.
RUN python -m sglang_plug_backends.avx512

FROM python:${PYTHON_VERSION}-slim-bookworm
ARG ACCELERATOR=cpu
# Triton compiles its launchers with a C compiler when kernels are first used.
# hadolint ignore=DL3008
RUN if [ "${ACCELERATOR}" = cuda ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && groupadd --gid 10001 sglang-plug \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /state --shell /usr/sbin/nologin sglang-plug \
    && install --directory --owner=10001 --group=10001 --mode=0750 /state /models
COPY --from=build /opt/sglang-plug /opt/sglang-plug
# What the server writes is below /state (uploaded files, batches, compiled kernels), /models (downloads) and /tmp, so the
# root file system can be read-only.
ENV PATH=/opt/sglang-plug/bin:$PATH \
    HOME=/state \
    XDG_STATE_HOME=/state \
    XDG_CACHE_HOME=/state/cache \
    HF_HOME=/models \
    PYTHONDONTWRITEBYTECODE=1 \
    SGLANG_PLUG_HOST=0.0.0.0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /state
USER 10001:10001
VOLUME ["/state", "/models"]
EXPOSE 30000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('SGLANG_PLUG_PORT', '30000')}/health\", timeout=4)"]
ENTRYPOINT ["sglang-plug"]
CMD ["serve"]
