# syntax=docker/dockerfile:1
# The attester. It needs Debian's TPM libraries; the TPM itself is the node's.
#   docker build -f deploy/images/attester.Dockerfile --build-arg BASE_DIGEST=sha256:... -t REGISTRY/nodewarden-attester:0.1.0 .
# BASE_DIGEST pins the base image. It is empty here, which takes the tag as it is today: no digest could be verified
# where this file was written, and an invented one would be worse than none. Release builds must give it.
ARG BASE_TAG=12.11-slim
ARG BASE_DIGEST=

FROM debian:${BASE_TAG}${BASE_DIGEST:+@${BASE_DIGEST}} AS build
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc pkg-config libtss2-dev && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml requirements.lock deploy/images/lock_of.py ./
# Every package by the hash that the lock gives it, and none that another part needs.
RUN python3 lock_of.py attester pyproject.toml requirements.lock > part.lock && \
    python3 -m venv /opt/nodewarden && \
    /opt/nodewarden/bin/pip install --no-cache-dir --require-hashes -r part.lock
COPY nodewarden.py README.md ./
COPY policies policies
COPY edges edges
COPY verifier verifier
COPY attester attester
RUN /opt/nodewarden/bin/pip install --no-cache-dir --no-deps --no-build-isolation . && \
    /opt/nodewarden/bin/pip uninstall --yes setuptools pip && \
    /opt/nodewarden/bin/nodewarden attester --help

FROM debian:${BASE_TAG}${BASE_DIGEST:+@${BASE_DIGEST}}
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 libtss2-esys-3.0.2-0 libtss2-fapi1 libtss2-mu0 libtss2-rc0 libtss2-sys1 libtss2-tcti-device0 libtss2-tctildr0 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nodewarden /opt/nodewarden
ENV PATH=/opt/nodewarden/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The pod overrides this with root, for the event log in securityfs; nothing else in the image needs it.
USER 65532:65532
ENTRYPOINT []
CMD ["nodewarden", "attester", "run"]
