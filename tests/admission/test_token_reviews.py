"""TokenReview answers: only one that names our audience and a whole pod is somebody."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from admission.cluster_view import PodIdentity
from admission.pod_tokens import BROKER_AUDIENCE, MAX_TOKEN_CHARACTERS
from admission.token_reviews import review_token
from tests.admission.scripted_api import Said, a_status, scripted_api
from tests.admission.world import ACCOUNT_UID, NODE, NODE_UID, NOW, POD_UID
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Unavailable

EXTRA = "authentication.kubernetes.io/"
REVIEW: dict[str, Any] = {
    "status": {
        "authenticated": True,
        "audiences": [BROKER_AUDIENCE],
        "user": {
            "username": "system:serviceaccount:ml:llm",
            "uid": ACCOUNT_UID,
            "extra": {
                EXTRA + "pod-name": ["llm-0"],
                EXTRA + "pod-uid": [POD_UID],
                EXTRA + "node-name": [NODE],
                EXTRA + "node-uid": [NODE_UID],
            },
        },
    }
}


def test_a_whole_answer_is_the_pod(tmp_path: Path) -> None:
    with scripted_api(tmp_path, lambda _: Said(REVIEW)) as (client, asked):
        identity = review_token(client, "token", NOW)
    assert identity == PodIdentity("ml", "llm", ACCOUNT_UID, "llm-0", POD_UID, NODE, NODE_UID, NOW)
    assert asked[0].body["spec"] == {"token": "token", "audiences": [BROKER_AUDIENCE]}


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(review: dict[str, Any]) -> None:
        place: Any = review
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_set("status", "authenticated", value=False), ReasonCode.TOKEN_INVALID),
        (_set("status", "authenticated", value="true"), ReasonCode.TOKEN_INVALID),
        (_set("status", "audiences", value=None), ReasonCode.TOKEN_INVALID),
        (_set("status", "audiences", value=["api"]), ReasonCode.TOKEN_INVALID),
        (_set("status", "user", "username", value="system:node:gpu-1"), ReasonCode.TOKEN_INVALID),
        (_set("status", "user", "username", value="system:serviceaccount:ml:llm:x"), ReasonCode.TOKEN_INVALID),
        (_set("status", "user", "extra", value=None), ReasonCode.TOKEN_NOT_POD_BOUND),
        (_set("status", "user", "extra", EXTRA + "pod-uid", value=[]), ReasonCode.TOKEN_NOT_POD_BOUND),
        (_set("status", "user", "extra", EXTRA + "node-uid", value=["a", "b"]), ReasonCode.TOKEN_NOT_POD_BOUND),
        (_set("status", "user", "extra", EXTRA + "node-name", value=NODE), ReasonCode.TOKEN_NOT_POD_BOUND),
        (_set("status", value=None), ReasonCode.TOKEN_INVALID),
    ],
)
def test_an_answer_that_lacks_anything_is_nobody(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], code: ReasonCode
) -> None:
    review = copy.deepcopy(REVIEW)
    change(review)
    with scripted_api(tmp_path, lambda _: Said(review)) as (client, _), pytest.raises(Refusal) as caught:
        review_token(client, "secret-token", NOW)
    assert caught.value.code is code
    assert "secret-token" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "x" * (MAX_TOKEN_CHARACTERS + 1), "t\u00f6ken"])
def test_what_can_be_no_token_is_not_even_sent(tmp_path: Path, token: str) -> None:
    with scripted_api(tmp_path, lambda _: Said(REVIEW)) as (client, asked), pytest.raises(Refusal) as caught:
        review_token(client, token, NOW)
    assert caught.value.code is ReasonCode.TOKEN_INVALID
    assert asked == []


def test_a_server_that_cannot_answer_is_no_verdict_on_the_token(tmp_path: Path) -> None:
    with (
        scripted_api(tmp_path, lambda _: Said(a_status(500, "InternalError"), 500)) as (client, _),
        pytest.raises(Unavailable) as caught,
    ):
        review_token(client, "secret-token", NOW)
    assert caught.value.code is ReasonCode.KUBERNETES_UNREACHABLE
