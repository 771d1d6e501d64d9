"""What a pod's volume asks for: the SecretProviderClass's parameters, the pod's token, and nothing guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attester.csi_messages import read_mount_request
from attester.csi_request import Wanted, claimed_pod, wanted_by
from tests.attester.csi_driver import TOKEN, TOKENS, Ask, ask, field_of, pod_tokens
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal


def wanted(asked: Ask) -> Wanted:
    return wanted_by(read_mount_request(asked.body()))


def code_of(asked: Ask) -> ReasonCode:
    with pytest.raises(Refusal) as refusal:
        wanted(asked)
    assert TOKEN not in refusal.value.failure.line()
    return refusal.value.code


def test_a_volume_asks_for_secrets_with_the_pods_token_in_files_that_only_their_owner_reads() -> None:
    assert wanted(ask(secrets="llm/key")) == Wanted("ml/llm-0", ("llm/key",), 0o400, TOKEN.encode())
    asked = wanted(ask())
    assert TOKEN not in repr(asked)


@pytest.mark.parametrize("text", ["a,b", " a , b ", "a,\n  b\n"])
def test_names_are_divided_by_commas(text: str) -> None:
    assert wanted(with_names(text)).names == ("a", "b")


def with_names(text: str) -> Ask:
    return ask(secrets=text)


@pytest.mark.parametrize(
    "text", ["", ",", "a,", "a,,b", "a b", "a,a", "../a", ",".join(f"n{number}" for number in range(33)), "\ud800"]
)
def test_names_that_no_secret_has_are_a_fault_of_the_class(text: str) -> None:
    assert code_of(with_names(text)) is ReasonCode.SETTING_INVALID


def test_a_class_without_secrets_asks_for_nothing_and_is_refused() -> None:
    assert code_of(ask(secrets=None)) is ReasonCode.SETTING_INVALID


def test_a_misspelt_parameter_is_refused_instead_of_taken_for_its_default() -> None:
    assert code_of(ask(filepermission="0444")) is ReasonCode.SETTING_INVALID
    assert code_of(ask(objects="a")) is ReasonCode.SETTING_INVALID


@pytest.mark.parametrize(
    ("permission", "drivers", "mode"),
    [
        (None, "420", 0o400),
        ("0440", "420", 0o440),
        ("0444", "420", 0o444),
        ("0444", "416", 0o440),
        ("0444", "256", 0o400),
        (None, "511", 0o400),
    ],
)
def test_the_drivers_permission_narrows_and_never_widens(permission: str | None, drivers: str, mode: int) -> None:
    assert wanted(ask(permission=drivers, filePermission=permission)).mode == mode


@pytest.mark.parametrize("permission", ["0600", "0644", "0777", "400", "0o400", "0000", "256", ""])
def test_a_permission_that_lets_a_pod_write_or_is_no_mode_is_refused(permission: str) -> None:
    assert code_of(ask(filePermission=permission)) is ReasonCode.SETTING_INVALID


@pytest.mark.parametrize("drivers", ["", "null", "-1", "36", "512", "0644", "420.0", "99999999999"])
def test_a_drivers_permission_that_is_no_mode_or_unreadable_is_refused(drivers: str) -> None:
    # "0644" is 644 in decimal, which is no mode.
    assert code_of(ask(permission=drivers)) is ReasonCode.MOUNT_REQUEST_MALFORMED


# --- the token ---


@pytest.mark.parametrize("secrets", [{}, None, {"other": "of a nodePublishSecretRef"}])
def test_the_pods_token_is_found_among_the_attributes_where_the_cluster_puts_it_there(secrets: Any) -> None:
    made = ask(**{TOKENS: pod_tokens("in.the.attributes")})
    made.secrets = secrets
    assert wanted(made).token == b"in.the.attributes"


def test_the_token_in_the_secrets_comes_first() -> None:
    assert wanted(ask(**{TOKENS: pod_tokens("in.the.attributes")})).token == TOKEN.encode()
    # The driver asks for tokens of its own where the kubelet left none in the attributes.
    other = ask(**{TOKENS: pod_tokens("in.the.attributes")})
    other.secrets = {TOKENS: pod_tokens(audience="vault")}
    assert wanted(other).token == b"in.the.attributes"


@pytest.mark.parametrize("secrets", [{}, {TOKENS: ""}, {TOKENS: "{}"}, {TOKENS: pod_tokens(audience="vault")}])
def test_without_a_token_for_the_broker_nothing_is_asked_for(secrets: Any) -> None:
    made = ask()
    made.secrets = secrets
    assert code_of(made) is ReasonCode.POD_TOKEN_MISSING


@pytest.mark.parametrize("token", ["", "no\u00e9l", "x" * (16 * 1024 + 1)])
def test_a_token_of_a_form_that_none_has_is_refused(token: str) -> None:
    made = ask()
    made.secrets = {TOKENS: pod_tokens(token)}
    assert code_of(made) is ReasonCode.TOKEN_INVALID


@pytest.mark.parametrize(
    "tokens",
    [
        "[]",
        "{",
        '{"nodewarden-broker": "token"}',
        '{"nodewarden-broker": {}}',
        '{"nodewarden-broker": {"token": 1}}',
        '{"nodewarden-broker": {"token": "a"}, "nodewarden-broker": {"token": "b"}}',
    ],
)
def test_tokens_of_another_form_are_refused(tokens: str) -> None:
    made = ask()
    made.secrets = {TOKENS: tokens}
    assert code_of(made) is ReasonCode.MOUNT_REQUEST_MALFORMED


# --- the driver's JSON ---


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"a": 1}', '{"a": "b", "a": "c"}', "[" * 100_000, "\x00"])
def test_attributes_that_are_no_mapping_of_texts_are_refused(text: str) -> None:
    request = read_mount_request(field_of(1, text) + field_of(2, "{}") + field_of(4, "420"))
    with pytest.raises(Refusal) as refusal:
        wanted_by(request)
    assert refusal.value.code is ReasonCode.MOUNT_REQUEST_MALFORMED


def test_a_pods_name_is_fit_for_one_line_of_a_log_whatever_the_driver_says() -> None:
    attributes = {"csi.storage.k8s.io/pod.name": "a\nINFO forged", "csi.storage.k8s.io/pod.namespace": ["\ud800"]}
    request = read_mount_request(field_of(1, json.dumps(attributes)))
    assert claimed_pod(request).isprintable()
    assert claimed_pod(read_mount_request(b"")) == "?/?"
