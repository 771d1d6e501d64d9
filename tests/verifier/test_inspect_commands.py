from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import nodewarden
from tests.evidence.logs import EFI_ACTION, VERSION, VM, changed, event, inserted, log_of, position_of, vm_drafts
from verifier.inspect_reports import certificate_report, eventlog_report, time_text
from verifier.wire.codes import ReasonCode
from verifier.wire.result import (
    PROFILE_DEPLOYED,
    PROFILE_WORKING_GROUP,
    AttestationResult,
    Submodule,
    Verdict,
    result_claims,
)

GRUB = VM / "sb-on-good"
DRAFTS = vm_drafts()
KEY, OTHER_KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
RESULT = AttestationResult(
    issuer="https://verifier.example",
    audience="cluster",
    issued_at=1_795_000_000,
    expires_at=1_795_000_300,
    sequence=1,
    verdict=Verdict.AFFIRMING,
    submodules={"tpm": Submodule(Verdict.AFFIRMING, {"instance-identity": 2})},
    node_id="00" * 32,
    node_name="node-1",
    kubernetes_node_uid=None,
    boot_id="11" * 32,
    linux_boot_id=None,
    cohort="default",
    tenant="default",
    baseline=None,
    policy_stale=False,
    evidence_sha256=None,
    binding_key=None,
    ak_public=None,
    reasons=(),
)


@dataclass(frozen=True)
class Ran:
    code: int
    output: str
    errors: str

    @property
    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.output)
        return shown

    @property
    def error_code(self) -> str:
        assert self.errors.count("\n") == 1
        return self.errors.split(": ")[1]


class Inspect(Protocol):
    def __call__(self, *arguments: object) -> Ran: ...


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """`nodewarden inspect ...` as a person runs it."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr("sys.argv", ["nodewarden", "inspect", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            nodewarden.main()
        captured = capsys.readouterr()
        code = stop.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


def _findings(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def test_a_boot_log_is_shown_with_events_pcrs_and_secure_boot(inspect: Inspect) -> None:
    ran = inspect("eventlog", GRUB / "eventlog.bin", "--json")
    assert (ran.code, ran.errors) == (0, "")
    shown = ran.shown
    assert (shown["format"], shown["algorithms"], shown["startup_locality"]) == ("crypto-agile", ["sha1", "sha256"], 0)
    assert shown["secure_boot"]["state"] == "on"
    assert shown["findings"] == []
    assert set(shown["pcrs"]) == {"sha1", "sha256"}
    assert set(shown["events"][0]) == {"index", "pcr", "type", "digests", "coverage", "detail"}
    assert len(shown["events"]) == len(DRAFTS) + 1
    line = shown["events"][position_of(DRAFTS, 8, 0x0D, b"kernel_cmdline") + 1]
    assert (line["type"], line["coverage"]) == ("EV_IPL", "covered")
    assert line["detail"].startswith("/vmlinuz console=ttyS0")


def test_a_boot_log_is_shown_to_people_too(inspect: Inspect) -> None:
    ran = inspect("eventlog", GRUB / "eventlog.bin")
    assert ran.code == 0
    assert "Secure Boot: on" in ran.output


def test_an_odd_log_is_shown_with_findings_and_accepted(inspect: Inspect, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(inserted(DRAFTS, 0, event(7, EFI_ACTION, b"UEFI Debug Mode")))
    ran = inspect("eventlog", log, "--json")
    assert ran.code == 0
    assert _findings(ran.shown) == [ReasonCode.SECURE_BOOT_LOG_INCONSISTENT.value]
    assert ran.shown["findings"][0]["where"] == "PCR 7 event 1"
    assert "finding: secure-boot-log-inconsistent" in inspect("eventlog", log).output


def test_a_contradiction_in_any_bank_is_a_finding() -> None:
    index = position_of(DRAFTS, 5, EFI_ACTION)
    draft = DRAFTS[index]
    forged = type(draft)(draft.pcr, draft.type, draft.digests | {"sha1": bytes(20)}, draft.content)
    report = eventlog_report(changed(DRAFTS, index, forged))
    assert _findings(report) == [ReasonCode.EVENT_DIGEST_MISMATCH.value]
    assert "(sha1)" in report["findings"][0]["message"]


def test_a_version_that_was_not_measured_is_a_finding() -> None:
    index = position_of(DRAFTS, 0, VERSION)
    report = eventlog_report(changed(DRAFTS, index, event(0, VERSION, "2\0".encode("utf-16-le"), b"x")))
    assert _findings(report) == ["firmware-version-not-covered"]


def test_what_extends_no_pcr_is_shown_as_a_hint() -> None:
    report = eventlog_report(log_of([event(0xFFFFFFFF, 3, b"WBCL"), *DRAFTS]))
    assert [shown["coverage"] for shown in report["events"][:2]] == ["hint", "hint"]


def test_control_characters_in_a_log_do_not_reach_the_terminal(inspect: Inspect, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = b"echo \x1b[31mred\nerror: forged: line"
    log.write_bytes(log_of([*DRAFTS, event(8, 0x0D, b"grub_cmd: " + text, text)]))
    assert "\x1b" not in inspect("eventlog", log).output
    assert "\nerror: forged" not in inspect("eventlog", log).output


def test_a_malformed_log_is_one_error_line_and_exit_2(inspect: Inspect, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes((GRUB / "eventlog.bin").read_bytes()[:-1])
    ran = inspect("eventlog", log, "--json")
    assert (ran.code, ran.output, ran.error_code) == (2, "", ReasonCode.BOOT_LOG_MALFORMED.value)


def test_a_file_that_cannot_be_read_is_one_error_line_and_exit_2(inspect: Inspect, tmp_path: Path) -> None:
    ran = inspect("eventlog", tmp_path / "absent", "--json")
    assert (ran.code, ran.error_code) == (2, ReasonCode.FILE_UNREADABLE.value)


def test_a_file_above_the_limit_is_one_error_line_and_exit_2(inspect: Inspect, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(5000))
    ran = inspect("quote", tmp_path / "large", GRUB / "quote.sig", GRUB / "ak.pub", "--json")
    assert (ran.code, ran.error_code) == (2, ReasonCode.BODY_TOO_LARGE.value)


@pytest.mark.parametrize(("case", "kind"), [("sb-on-good", "P-256"), ("uki-sb-on", "RSA-2048")])
def test_a_quote_is_shown_with_its_signature_verified(inspect: Inspect, case: str, kind: str) -> None:
    folder = VM / case
    ran = inspect("quote", folder / "quote.attest", folder / "quote.sig", folder / "ak.pub", "--json")
    assert (ran.code, ran.errors) == (0, "")
    shown = ran.shown
    assert shown["signature"] == "valid"
    assert shown["key"]["type"] == kind
    assert shown["extra_data"] == (folder / "nonce").read_bytes().hex()
    assert shown["pcr_selection"] == {"sha256": list(range(15))}
    assert {"pcr_digest", "clock", "reset_count", "restart_count", "safe", "firmware_version"} <= set(shown)


def test_an_altered_quote_is_shown_and_exit_1(inspect: Inspect, tmp_path: Path) -> None:
    attest = (GRUB / "quote.attest").read_bytes()
    (tmp_path / "attest").write_bytes(attest[:-1] + bytes((attest[-1] ^ 1,)))
    ran = inspect("quote", tmp_path / "attest", GRUB / "quote.sig", GRUB / "ak.pub", "--json")
    assert ran.shown["signature"] == "invalid"
    assert (ran.code, ran.error_code) == (1, ReasonCode.QUOTE_SIGNATURE_INVALID.value)


def test_a_malformed_quote_is_exit_2(inspect: Inspect, tmp_path: Path) -> None:
    (tmp_path / "attest").write_bytes(b"\xffTCG" + bytes(4))
    ran = inspect("quote", tmp_path / "attest", GRUB / "quote.sig", GRUB / "ak.pub", "--json")
    assert (ran.code, ran.output, ran.error_code) == (2, "", ReasonCode.QUOTE_TYPE_WRONG.value)


def test_an_ek_certificate_and_its_ca_are_shown(inspect: Inspect) -> None:
    shown = inspect("ekcert", GRUB / "ekcert.der", "--json").shown
    assert (shown["kind"], shown["manufacturer"], shown["model"]) == ("ek", "00001014", "swtpm")
    assert shown["not_after"] == "9999-12-31T23:59:59Z"
    assert inspect("ekcert", GRUB / "ca-root.pem", "--json").shown["kind"] == "ca"


def test_padding_around_a_certificate_is_a_finding_and_not_in_its_digest() -> None:
    der = (GRUB / "ekcert.der").read_bytes()
    padded = certificate_report(der + b"\xff" * 20)
    assert _findings(padded) == ["certificate-padded"]
    assert padded["sha256"] == certificate_report(der)["sha256"]


def test_a_malformed_certificate_is_exit_2(inspect: Inspect) -> None:
    ran = inspect("ekcert", GRUB / "quote.sig", "--json")
    assert (ran.code, ran.error_code) == (2, ReasonCode.CERTIFICATE_MALFORMED.value)


def _token(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey = KEY, profile: str = PROFILE_DEPLOYED, typ: str = "eat+jwt"
) -> Path:
    path = tmp_path / "result.jwt"
    headers = {"kid": "k1", "typ": typ}
    path.write_text(jwt.encode(result_claims(RESULT, profile, "test"), key, "ES256", headers=headers) + "\n")
    return path


def _jwks(tmp_path: Path) -> Path:
    public = json.loads(jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).to_jwk(KEY.public_key()))
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [public | {"kid": "k1", "alg": "ES256", "use": "sig"}]}))
    return path


@pytest.mark.parametrize("profile", [PROFILE_DEPLOYED, PROFILE_WORKING_GROUP])
def test_a_result_is_shown_unchecked_without_keys_and_valid_with_them(
    inspect: Inspect, tmp_path: Path, profile: str
) -> None:
    token = _token(tmp_path, profile=profile)
    shown = inspect("result", token, "--json").shown
    assert (shown["signature"], shown["verdict"], shown["node_name"]) == ("unchecked", "affirming", "node-1")
    assert shown["expires_at"] == "2026-11-18T11:11:40Z"
    ran = inspect("result", token, "--jwks", _jwks(tmp_path), "--json")
    assert (ran.code, ran.shown["signature"]) == (0, "valid")


def test_a_result_by_another_key_is_shown_and_exit_1(inspect: Inspect, tmp_path: Path) -> None:
    ran = inspect("result", _token(tmp_path, OTHER_KEY), "--jwks", _jwks(tmp_path), "--json")
    assert ran.shown["signature"] == "invalid"
    assert (ran.code, ran.error_code) == (1, ReasonCode.RESULT_SIGNATURE_INVALID.value)


def test_a_result_that_names_no_algorithm_is_invalid(inspect: Inspect, tmp_path: Path) -> None:
    unsigned = tmp_path / "result.jwt"
    claims = result_claims(RESULT, PROFILE_DEPLOYED, "test")
    unsigned.write_text(jwt.encode(claims, "", "none", headers={"kid": "k1", "typ": "eat+jwt"}))
    assert inspect("result", unsigned, "--jwks", _jwks(tmp_path), "--json").code == 1


def test_a_signed_token_of_another_type_is_no_result(inspect: Inspect, tmp_path: Path) -> None:
    ran = inspect("result", _token(tmp_path, typ="nodewarden-audit-head+jwt"), "--jwks", _jwks(tmp_path), "--json")
    assert (ran.code, ran.error_code) == (2, ReasonCode.RESULT_MALFORMED.value)


@pytest.mark.parametrize("content", [b"", b"a.b", b"e30.e30.x", b"\xff.\xff.\xff"])
def test_what_is_no_result_is_exit_2(inspect: Inspect, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    ran = inspect("result", tmp_path / "token", "--json")
    assert (ran.code, ran.output) == (2, "")


def test_times_reach_the_year_9999() -> None:
    assert time_text(253402300799) == "9999-12-31T23:59:59Z"
    assert time_text(0) == "1970-01-01T00:00:00Z"
    assert time_text(-631152000) == "1950-01-01T00:00:00Z"
