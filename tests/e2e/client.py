"""A small JSON client of the API server, as one identity."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from verifier.wire.codes import ReasonCode

_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    status: int
    body: Any
    warnings: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)

    def denies(self, *codes: ReasonCode) -> bool:
        """Whether our webhook refused this for exactly these reasons, and says each of them in words too."""
        details = self.body.get("details") if isinstance(self.body, dict) else None
        causes = (details or {}).get("causes") or []
        told = self.message.startswith("admission webhook ") and all(code.value in self.message for code in codes)
        return self.status == 403 and told and {cause.get("reason") for cause in causes} == {c.value for c in codes}

    def fails_calling(self, webhook: str) -> bool:
        """Whether the API server refused this because it got no answer of the webhook: words of its own, not ours."""
        failed = f'failed calling webhook "{webhook}"'
        return self.status == 500 and self.body.get("reason") == "InternalError" and failed in self.message

    def denied_by_policy(self, name: str) -> bool:
        """Whether the ValidatingAdmissionPolicy `name` refused this."""
        return self.status == 403 and f"ValidatingAdmissionPolicy '{name}'" in self.message


class Refused(Exception):
    """The API server refused what a test takes for granted."""


class Client:
    """Requests to the API server as one identity; `must_*` raise Refused where the server does not accept."""

    def __init__(self, server: str, ca: Path, *, certificate: tuple[Path, Path] | None = None, token: str = "") -> None:
        context = ssl.create_default_context(cafile=str(ca))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=server, verify=context, headers=headers, timeout=30, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        parameters: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        if body is None:
            response = self._http.request(method, path, params=parameters)
        else:
            content = httpx.Request(method, "https://localhost", json=body).read()
            response = self._http.request(
                method, path, params=parameters, content=content, headers={"content-type": content_type}
            )
        kind = response.headers.get("content-type", "")
        read = response.json() if "json" in kind and response.content else response.text
        return Answer(response.status_code, read, tuple(response.headers.get_list("warning")))

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def create(self, path: str, body: object, *, dry_run: bool = False) -> Answer:
        return self.request("POST", path, body, parameters={"dryRun": "All"} if dry_run else None)

    def replace(self, path: str, body: object) -> Answer:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: object, *, kind: str = "merge") -> Answer:
        return self.request("PATCH", path, body, content_type=_PATCHES[kind])

    def delete(self, path: str, *, grace_seconds: int | None = None) -> Answer:
        options = None if grace_seconds is None else {"gracePeriodSeconds": str(grace_seconds)}
        return self.request("DELETE", path, parameters=options)

    def must_get(self, path: str) -> Any:
        return _accepted(self.get(path), f"GET {path}")

    def must_create(self, path: str, body: object) -> Any:
        return _accepted(self.create(path, body), f"POST {path}")

    def must_patch(self, path: str, body: object, *, kind: str = "merge") -> Any:
        return _accepted(self.patch(path, body, kind=kind), f"PATCH {path}")

    def must_apply(self, path: str, body: object) -> Any:
        """Server-side apply: creates the object, or makes it as `body` says."""
        options = {"fieldManager": "e2e", "force": "true"}
        answer = self.request("PATCH", path, body, parameters=options, content_type=_PATCHES["apply"])
        return _accepted(answer, f"apply {path}")


def _accepted(answer: Answer, what: str) -> Any:
    if not answer.accepted:
        raise Refused(f"{what}: {answer.status} {answer.message}")
    return answer.body
