"""Talks to the Kubernetes API server: plain JSON over the official client's configuration and connection pool.

The only module that imports `kubernetes`. Of it we take credentials, their refresh, and TLS; its object models cost
twenty times the JSON they stand for (measured), so nothing is deserialised into them. Every answer is bounded in size
and time, and no redirect is followed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import orjson
import urllib3
from kubernetes import client, config

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable, printable

MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""etcd takes objects to 1.5 MiB; JSON escapes can multiply that."""
MAX_ERROR_BYTES = 64 * 1024
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 10.0
PAGE_OBJECTS = 500
MAX_PAGES = 1000
CONNECTIONS = 64
"""One for each watch that may run, and some for requests; a pool that is too small would close and open them."""

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class KubeRefusal(Rejection):
    """The API server answered, and the answer is no: `status` is HTTP's, `reason` is metav1.Status's."""

    def __init__(self, status: int, reason: str, where: str, message: str) -> None:
        super().__init__(ReasonCode.KUBERNETES_REFUSED, where, f"{status} {reason}: {message}")
        self.status, self.reason = status, reason


class KubeNotFound(KubeRefusal):
    """404: no such object, or no such kind."""


class KubeConflict(KubeRefusal):
    """409: changed since it was read, or (`reason` AlreadyExists) there already."""


class KubeGone(KubeRefusal):
    """410: the resource version is too old to watch or page from; list again."""


class KubeDenied(KubeRefusal):
    """401 or 403: RBAC or an admission step said no."""


class KubeUnavailable(Unavailable):
    """No usable answer: the server cannot be reached, is overloaded, or broke off."""

    def __init__(self, where: str, observed: str) -> None:
        super().__init__(ReasonCode.KUBERNETES_UNREACHABLE, where, observed)


_REFUSALS: Mapping[int, type[KubeRefusal]] = {
    401: KubeDenied,
    403: KubeDenied,
    404: KubeNotFound,
    409: KubeConflict,
    410: KubeGone,
}

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class KubeClient:
    """One API server with one identity. Safe to use from any thread."""

    def __init__(self, configuration: client.Configuration) -> None:
        # Attack: a kubeconfig that switches certificate checks off hands every secret review to whoever is in between.
        if not configuration.host.startswith("https://") or not configuration.verify_ssl:
            raise Rejection(
                ReasonCode.SETTING_INVALID, "kubernetes", configuration.host, "https with a certificate that is checked"
            )
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS
        self._configuration = configuration
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager = client.ApiClient(configuration).rest_client.pool_manager

    @classmethod
    def from_kubeconfig(cls, path: Path) -> KubeClient:
        """The server and identity of the current context of `path`. Raises Rejection `setting-invalid`."""
        configuration = client.Configuration()
        try:
            config.load_kube_config(str(path), client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]  # - untyped there
        except (config.ConfigException, OSError) as error:
            raise Rejection(ReasonCode.SETTING_INVALID, "kubernetes.kubeconfig", printable(str(error))) from error
        return cls(configuration)

    @classmethod
    def in_cluster(cls) -> KubeClient:
        """The server and identity that the kubelet mounts into a pod. Raises Rejection `setting-invalid`."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # - as above
        except (config.ConfigException, OSError) as error:
            raise Rejection(ReasonCode.SETTING_INVALID, "kubernetes.in_cluster", printable(str(error))) from error
        return cls(configuration)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Any:
        """The JSON that the server answers to one request; no retry.

        Raises KubeNotFound, KubeConflict, KubeGone, KubeDenied or another KubeRefusal for an answer that is no;
        KubeUnavailable when there was none, it was too long, or the server asks to come back (429, 5xx).
        """
        response = self._open(method, path, body, content_type, timeout_seconds)
        try:
            content = _bounded(response, path)
        finally:
            response.release_conn()
        try:
            return orjson.loads(content)
        except ValueError as error:
            raise KubeUnavailable(path, "no JSON") from error

    def list_pages(self, path: str, **parameters: str) -> Iterator[Mapping[str, Any]]:
        """The pages of the collection at `path`, each a List object; one moment of it, the last page says which.

        Raises as `request`; KubeGone when paging took too long.
        """
        proceed = ""
        for _ in range(MAX_PAGES):
            query = {"limit": str(PAGE_OBJECTS), **parameters, **({"continue": proceed} if proceed else {})}
            page = self.request("GET", _with_query(path, query), timeout_seconds=30.0)
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise KubeUnavailable(path, "no list")
            yield page
            proceed = (page.get("metadata") or {}).get("continue") or ""
            if not proceed:
                return
        raise KubeUnavailable(path, f"more than {MAX_PAGES} pages")

    def watch(
        self,
        path: str,
        resource_version: str,
        on_event: Callable[[EventType, Mapping[str, Any]], None],
        *,
        on_open: Callable[[], None] = lambda: None,
        seconds: int = 15,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Has told `on_event` everything after `resource_version` until the server ended the watch in good order.

        The server ends it after `seconds`, with a bookmark shortly before (kube-apiserver, cacher.go), so that life is
        proved that often; a silence of twice that counts as a broken connection. `on_open` hears that the server
        accepted the watch. Bookmarks carry only a resource version. Raises KubeGone when the version is too old, also
        from within the stream; KubeUnavailable when the stream broke; as `request` otherwise.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        response = self._open("GET", _with_query(path, query), None, "application/json", seconds * 2.0)
        ended = False
        try:
            on_open()
            for line in _lines(response, path):
                if stopped():
                    return
                kind, fields = _event(line, path)
                on_event(kind, fields)
            ended = True
        finally:
            # A connection left in the middle of a stream cannot be used again.
            if ended:
                response.release_conn()
            else:
                response.close()

    def _open(
        self, method: str, path: str, body: object, content_type: str, read_seconds: float
    ) -> urllib3.response.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "nodewarden"}
        with self._lock:  # the refresh of a token is not made for threads
            authorization = self._configuration.get_api_key_with_prefix("BearerToken", "authorization")
            host = self._configuration.host
        if authorization:
            headers["Authorization"] = authorization
        content = None
        if body is not None:
            content, headers["Content-Type"] = orjson.dumps(body), content_type
        try:
            response = self._pool.request(
                method,
                host + path,
                body=content,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubeUnavailable(path, type(error).__name__) from error
        if 200 <= response.status < 300:
            return response
        raise _refusal(response, path)


def _with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}{'&' if '?' in path else '?'}{urlencode(query)}"


def _refusal(response: urllib3.response.BaseHTTPResponse, path: str) -> KubeRefusal | KubeUnavailable:
    try:
        content = response.read(MAX_ERROR_BYTES)
        status = orjson.loads(content)
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        status = {}
    finally:
        response.close()
    fields = status if isinstance(status, dict) else {}
    reason, message = str(fields.get("reason", "")), printable(str(fields.get("message", "")))
    if response.status == 429 or response.status >= 500 or response.status < 400:
        return KubeUnavailable(path, f"{response.status} {reason}: {message}")
    return _REFUSALS.get(response.status, KubeRefusal)(response.status, reason, path, message)


def _bounded(response: urllib3.response.BaseHTTPResponse, path: str) -> bytes:
    content = bytearray()
    try:
        for part in response.stream(1 << 16, decode_content=True):
            content += part
            if len(content) > MAX_ANSWER_BYTES:
                response.close()
                raise KubeUnavailable(path, f"more than {MAX_ANSWER_BYTES} bytes")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise KubeUnavailable(path, type(error).__name__) from error
    return bytes(content)


def _lines(response: urllib3.response.BaseHTTPResponse, path: str) -> Iterator[bytes]:
    rest = bytearray()
    try:
        for part in response.stream(1 << 16, decode_content=True):
            rest += part
            *lines, last = rest.split(b"\n")
            yield from (bytes(line) for line in lines if line)
            rest = last
            if len(rest) > MAX_EVENT_BYTES:
                raise KubeUnavailable(path, f"an event above {MAX_EVENT_BYTES} bytes")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise KubeUnavailable(path, type(error).__name__) from error
    if rest:
        raise KubeUnavailable(path, "a stream that ends within an event")


def _event(line: bytes, path: str) -> tuple[EventType, Mapping[str, Any]]:
    try:
        event = orjson.loads(line)
    except ValueError as error:
        raise KubeUnavailable(path, "an event that is no JSON") from error
    kind, fields = (event.get("type"), event.get("object")) if isinstance(event, dict) else (None, None)
    if not isinstance(fields, dict):
        raise KubeUnavailable(path, "an event without object")
    if kind == "ERROR":
        code = fields.get("code")
        if code == 410:
            raise KubeGone(410, str(fields.get("reason", "")), path, printable(str(fields.get("message", ""))))
        raise KubeUnavailable(path, f"{code} {fields.get('reason')}")
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise KubeUnavailable(path, f"an event of type {printable(str(kind))}")
    return kind, fields
