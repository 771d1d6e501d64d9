# syntax=docker/dockerfile:1
# The verifier.
#   docker build -f deploy/images/verifier.Dockerfile --build-arg BASE_DIGEST=sha256:... -t REGISTRY/nodewarden-verifier:0.1.0 .
# BASE_DIGEST pins the base image. It is empty here, which takes the tag as it is today: no digest could be verified
# where this file was written, and an invented one would be worse than none. Release builds must give it.
ARG BASE_TAG=12.11-slim
ARG BASE_DIGEST=

FROM debian:${BASE_TAG}${BASE_DIGEST:+@${BASE_DIGEST}} AS build
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 python3-venv && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml requirements.lock deploy/images/lock_of.py ./
# Every package by the hash that the lock gives it, and none that another part needs.
RUN python3 lock_of.py verifier pyproject.toml requirements.lock > part.lock && \
    python3 -m venv /opt/nodewarden && \
    /opt/nodewarden/bin/pip install --no-cache-dir --require-hashes -r part.lock
COPY nodewarden.py README.md ./
COPY policies policies
COPY edges edges
COPY verifier verifier
RUN /opt/nodewarden/bin/pip install --no-cache-dir --no-deps --no-build-isolation . && \
    /opt/nodewarden/bin/pip uninstall --yes setuptools pip && \
    /opt/nodewarden/bin/nodewarden verifier --help

FROM debian:${BASE_TAG}${BASE_DIGEST:+@${BASE_DIGEST}}
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nodewarden /opt/nodewarden
ENV PATH=/opt/nodewarden/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT []
CMD ["nodewarden", "verifier", "serve"]
