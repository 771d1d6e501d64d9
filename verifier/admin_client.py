"""HTTPS to the verifier for people's commands: pinned CA, a bearer token from a 0600 file, errors in our terms."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx

from edges.private_files import read_private
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Refusal, Rejection, Unavailable

TIMEOUT_SECONDS = 30
_CODES = {code.value: code for code in ReasonCode}


class AdminClient:
    """Calls one verifier as one holder of a token."""

    def __init__(self, url: str, ca: Path | None, token_file: Path) -> None:
        if not url.startswith("https://"):
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, "url", url, "https://...")
        self._token = read_private(token_file).decode("ascii", "replace").strip()
        try:
            self._context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(ReasonCode.FILE_UNREADABLE, str(ca), type(error).__name__) from error
        self._url = url.rstrip("/")

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises the refusal that the verifier answered, or `verifier-unreachable`."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that answers `body`. Raises as `get`."""
        return self._call("POST", path, None if body is None else json.dumps(body).encode())

    def _call(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._token}"}
        try:
            # A command makes one call or two: no connection is kept, and no proxy of the environment is used.
            with httpx.Client(verify=self._context, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
                response = http.request(method, self._url + path, content=content, headers=headers)
            fields: dict[str, Any] = response.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, path, type(error).__name__) from error
        except ValueError as error:
            raise Unavailable(ReasonCode.VERIFIER_UNREACHABLE, path, "an answer that is no JSON") from error
        if response.is_success:
            return fields
        raise _refusal(response.status_code, fields, path)


def _refusal(status: int, problem: dict[str, Any], path: str) -> Refusal:
    code = _CODES.get(str(problem.get("code")), ReasonCode.VERIFIER_REFUSED)
    detail = f"{problem.get('detail')} (request {problem.get('request_id')})"
    if status >= 500:
        return Unavailable(code, path, detail)
    if status in (400, 413):
        return MalformedEvidence(code, path, detail)
    return Rejection(code, path, detail)
