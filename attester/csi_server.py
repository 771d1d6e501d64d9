"""The provider's gRPC edge: Version and Mount on a unix socket. Every answer is logged, without content or token.

The one place where a refusal becomes a gRPC status. Its message is what the driver hands on to the kubelet, and the
kubelet writes into the pod's Events: code, what and where, remedy.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import grpc

from attester.csi_messages import (
    MAX_REQUEST_BYTES,
    SERVICE,
    MountResponse,
    read_mount_request,
    write_mount_response,
    write_version_response,
)
from attester.csi_mount import Mounts
from attester.csi_request import claimed_pod, wanted_by
from attester.csi_socket import is_still, listening
from attester.daemon import Bell
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, MalformedEvidence, Refusal, Rejection, Unavailable

log = logging.getLogger("nodewarden.attester.csi")

RUNTIME_NAME = "nodewarden"
MAX_MOUNTS = 64
"""At once. A node that starts mounts for all of its pods together; the TPM takes them one by one anyway."""
_SPARE_THREADS = 2
"""So that one mount too many, and Version, are answered while all others wait."""
STOP_SECONDS = 20.0
"""For mounts in flight when the end is asked for; a DaemonSet's pod is given thirty."""
LOOK_SECONDS = 10.0
"""How often we look whether the socket is still ours."""
_OPTIONS = (
    # Ours is the lower limit, so that the refusal is in our words.
    ("grpc.max_receive_message_length", 4 * MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", 4 * MAX_MOUNTS),
)


class Provider:
    """The service's two methods, over requests and answers in bytes."""

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._free = threading.BoundedSemaphore(MAX_MOUNTS)

    def version(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        """Which interface and release this is."""
        return write_version_response(RUNTIME_NAME, metadata.version("nodewarden"))

    def mount(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        """The pod's files; or the call ends with the reason."""
        began = time.monotonic()
        if not self._free.acquire(blocking=False):
            refusal = Unavailable(ReasonCode.MOUNTS_EXHAUSTED, "mounts", f"{MAX_MOUNTS} at once", "fewer")
            _refuse(context, refusal, "?/?", began)
        try:
            return write_mount_response(self._mounted(body, context, began))
        finally:
            self._free.release()

    def _mounted(self, body: bytes, context: grpc.ServicerContext, began: float) -> MountResponse:
        pod = "?/?"
        try:
            request = read_mount_request(body)
            pod = claimed_pod(request)
            wanted = wanted_by(request)
            response = self._mounts.mount(wanted)
        except Refusal as refusal:
            _refuse(context, refusal, pod, began)
        except Exception as error:
            # The edge: whatever failed, nothing is handed out.
            fault = (pod, type(error).__name__, _ms_since(began))
            log.error("mount_failed pod=%s error=%s ms=%d", *fault)  # noqa: TRY400 - a traceback could quote a token
            context.abort(grpc.StatusCode.INTERNAL, _words(Failure(ReasonCode.INTERNAL_ERROR, "mount")))
            raise
        names = ",".join(wanted.names)
        log.info("secrets_mounted pod=%s secrets=%s ms=%d", pod, names, _ms_since(began))
        return response


def serve(path: Path, mounts: Mounts, bell: Bell) -> None:
    """Answers the driver at `path` until the bell says stop, and returns once mounts in flight have ended.

    Those that the broker lets wait end by their own limits, which may be longer than the `STOP_SECONDS` after which
    the driver hears nothing of them any more.

    Raises as `csi_socket.listening` does; Unavailable `address-unavailable` when the socket is taken away, since the
    driver cannot find us any more.
    """
    with _serving(path, mounts) as made:
        log.info("serving socket=%s", path)
        while not bell.stopped:
            if not is_still(path, made):
                raise Unavailable(ReasonCode.ADDRESS_UNAVAILABLE, str(path), "removed or replaced")
            bell.wait(LOOK_SECONDS)
    log.info("stopped")


@contextmanager
def _serving(path: Path, mounts: Mounts) -> Iterator[os.stat_result]:
    provider = Provider(mounts)
    handlers = {
        "Version": grpc.unary_unary_rpc_method_handler(provider.version),
        "Mount": grpc.unary_unary_rpc_method_handler(provider.mount),
    }
    with ThreadPoolExecutor(MAX_MOUNTS + _SPARE_THREADS, "mount") as threads:
        server = grpc.server(threads, options=_OPTIONS, maximum_concurrent_rpcs=4 * MAX_MOUNTS)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        with listening(path, server.add_insecure_port) as made:
            server.start()
            try:
                yield made
            finally:
                server.stop(STOP_SECONDS).wait()


def _refuse(context: grpc.ServicerContext, refusal: Refusal, pod: str, began: float) -> NoReturn:
    code, line = refusal.code.value, refusal.failure.line()
    log.warning("mount_refused pod=%s code=%s ms=%d %s", pod, code, _ms_since(began), line)
    context.abort(_status(refusal), _words(refusal.failure))
    raise AssertionError("abort raises")


def _status(refusal: Refusal) -> grpc.StatusCode:
    match refusal:
        case MalformedEvidence():
            return grpc.StatusCode.INVALID_ARGUMENT
        case Rejection():
            return grpc.StatusCode.PERMISSION_DENIED
        case Unavailable():
            # The driver itself asks twice more for this one, within the same mount.
            return grpc.StatusCode.UNAVAILABLE
        case _:
            raise AssertionError(type(refusal))


def _words(failure: Failure) -> str:
    return f"{failure.code.value}: {failure.line()}; {failure.code.remedy}"


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
