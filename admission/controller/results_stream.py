"""The verifier's stream of results, read over TLS from one pinned CA: signed tokens in, and whether the stream lives.

Alive means: something, if only a sign of life, came within ten seconds, and the snapshot is complete. What the stream
says beside its tokens counts for nothing; each token is verified by whoever takes it.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import structlog

from edges.private_files import read_bounded
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable

ALIVE_SECONDS = 10.0
"""Two signs of life fit into it: the verifier sends one every five seconds."""
CONNECT_SECONDS = 5.0
MAX_LINE_BYTES = 1024 * 1024
RETRY_SECONDS = 1.0
MAX_TOKEN_BYTES = 8 * 1024
PATH = "/v1/results?watch=true"


class ResultsStream:
    """One consumer of one verifier. `run` blocks in a thread of its own; `alive` may be asked from any other."""

    def __init__(self, url: str, ca_file: Path, token_file: Path, take: Callable[[str], None]) -> None:
        """`take` hears every token, in the verifier's commit order. Raises Rejection `setting-invalid` without TLS."""
        if not url.startswith("https://"):
            raise Rejection(ReasonCode.SETTING_INVALID, "verifier.url", url, "an https address")
        self._url, self._ca_file, self._token_file, self._take = url.rstrip("/") + PATH, ca_file, token_file, take
        self._last_event = ""
        self._heard: float | None = None
        self._last_heard = float("-inf")
        self._complete = False
        self._stop = threading.Event()

    def alive(self) -> bool:
        """Whether all that the verifier has said is here, as of ten seconds ago at most (monotonic clock)."""
        heard = self._heard
        return self._complete and heard is not None and time.monotonic() - heard < ALIVE_SECONDS

    def silent_seconds(self) -> float:
        """How long ago the verifier said anything, by this or an earlier connection; infinity where it never did."""
        return time.monotonic() - self._last_heard

    def stop(self) -> None:
        """`run` returns within ten seconds, when its connection next says something or breaks."""
        self._stop.set()

    def run(self) -> None:
        """Reads, and connects again where it was left, until `stop`."""
        while not self._stop.is_set():
            try:
                self._read()
                reason = "ended"
            except Refusal as refusal:
                reason = str(refusal)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
                reason = type(error).__name__
            self._heard = None
            if not self._stop.is_set():
                structlog.get_logger().warning("results_stream_broken", reason=reason)
                self._stop.wait(RETRY_SECONDS)

    def _read(self) -> None:
        # Read again at every connection: a mounted token is replaced while we run.
        token = read_bounded(self._token_file, MAX_TOKEN_BYTES).decode("ascii", "strict").strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        if self._last_event:
            headers["Last-Event-ID"] = self._last_event
        self._complete = False
        trust = ssl.create_default_context(cafile=str(self._ca_file))
        timeout = httpx.Timeout(ALIVE_SECONDS, connect=CONNECT_SECONDS)
        with (
            httpx.Client(verify=trust, timeout=timeout, trust_env=False) as client,
            client.stream("GET", self._url, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                raise Unavailable(ReasonCode.VERIFIER_REFUSED, self._url, f"status {answer.status_code}", "200")
            kind, identity, text = "", "", ""
            for line in _lines(answer):
                self._heard = self._last_heard = time.monotonic()
                if self._stop.is_set():
                    return
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                match name:
                    case "event":
                        kind = value
                    case "id":
                        identity = value
                    case "data":
                        text = value
                    case "" if not line:
                        self._event(kind, identity, text)
                        kind, identity, text = "", "", ""
                    case _:
                        pass

    def _event(self, kind: str, identity: str, text: str) -> None:
        match kind:
            case "result":
                self._take(_token(text))
                # Only now: what was not taken is asked for again after a break.
                self._last_event = identity
            case "snapshot-complete":
                self._complete = True
            case _:
                # A newer verifier may send kinds that we do not know; a sign of life is all that they are to us.
                return


def _token(text: str) -> str:
    try:
        token = json.loads(text)["result"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unavailable(ReasonCode.VERIFIER_REFUSED, "results.event", type(error).__name__, "a result") from error
    if type(token) is not str:
        raise Unavailable(ReasonCode.VERIFIER_REFUSED, "results.event", type(token).__name__, "a result")
    return token


def _lines(answer: httpx.Response) -> Iterator[str]:
    rest = b""
    for part in answer.iter_raw():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise Unavailable(
                ReasonCode.VERIFIER_REFUSED, "results.event", "too long", f"{MAX_LINE_BYTES} bytes a line"
            )
        yield from (line.decode("utf-8", "replace").rstrip("\r") for line in lines)
