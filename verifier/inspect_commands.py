"""`nodewarden inspect`: what a piece of evidence says and whether it holds together. Nothing is judged by policy.

Exit 0: parsed, however odd. Exit 1: a signature does not hold (JSON on stdout, the error line on stderr). Exit 2:
malformed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import jwt
import typer

from verifier.appraisal.endorsements import ders_in
from verifier.appraisal.signatures import verify_signature
from verifier.evidence.attest import parse_signature
from verifier.evidence.tpm import parse_public
from verifier.inspect_reports import certificate_report, eventlog_report, key_report, quote_report, time_text
from verifier.wire.bundle import MAX_BOOT_LOG_BYTES, MAX_STRUCTURE_BYTES
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import decode_base64url, decode_json_object
from verifier.wire.failures import MalformedEvidence, Rejection
from verifier.wire.result import RESULT_TYPE, AttestationResult, result_from_claims

_MAX_CERTIFICATE_FILE_BYTES = 1024 * 1024
_MAX_RESULT_BYTES = 256 * 1024
_ALGORITHM = "ES256"

inspect_app = typer.Typer(help="Show what a piece of evidence says.", no_args_is_help=True)
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FileArgument = Annotated[Path, typer.Argument(show_default=False)]


@inspect_app.command("eventlog")
def eventlog_command(file: FileArgument, *, as_json: JsonOption = False) -> None:
    """A TPM boot log (binary_bios_measurements) or a CCEL."""
    report = eventlog_report(_read(file, MAX_BOOT_LOG_BYTES))
    if as_json:
        _print_json(report)
        return
    typer.echo(f"{report['format']} log, {', '.join(report['algorithms'])}, locality {report['startup_locality']}")
    for event in report["events"]:
        pcr = "-" if event["pcr"] > 23 else event["pcr"]
        typer.echo(f"{event['index']:5} PCR {pcr:>2} {event['type']:34} {event['coverage']:11} {event['detail'][:100]}")
    for bank, pcrs in report["pcrs"].items():
        for pcr, value in pcrs.items():
            typer.echo(f"{bank}:{pcr:<2} {value}")
    typer.echo(f"Secure Boot: {report['secure_boot']['state']} ({report['secure_boot']['reason']})")
    _print_findings(report)


@inspect_app.command("quote")
def quote_command(
    attest: FileArgument, signature: FileArgument, public: FileArgument, *, as_json: JsonOption = False
) -> None:
    """A quote: TPMS_ATTEST, TPMT_SIGNATURE and the key's TPM2B_PUBLIC."""
    quote, report = quote_report(_read(attest, MAX_STRUCTURE_BYTES))
    key = parse_public(_read(public, MAX_STRUCTURE_BYTES))
    signed = parse_signature(_read(signature, MAX_STRUCTURE_BYTES))
    rejection: Rejection | None = None
    try:
        verify_signature(key, quote.raw, signed, ReasonCode.QUOTE_SIGNATURE_INVALID, "quote.signature")
    except Rejection as error:
        rejection = error
    _print({"signature": "invalid" if rejection else "valid", "key": key_report(key), **report}, as_json=as_json)
    if rejection is not None:
        raise rejection


@inspect_app.command("ekcert")
def ekcert_command(file: FileArgument, *, as_json: JsonOption = False) -> None:
    """A TPM's EK certificate or a maker's CA certificate: DER, NV dump, or the first certificate of a PEM file."""
    content = _read(file, _MAX_CERTIFICATE_FILE_BYTES)
    blob = ders_in(content, "certificate", file.name)[0] if b"-----BEGIN" in content else content
    _print(certificate_report(blob), as_json=as_json)


@inspect_app.command("result")
def result_command(
    file: FileArgument,
    *,
    jwks: Annotated[
        Path | None, typer.Option(help="The verifier's JWKS; without it the signature is unchecked.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """An attestation result (a signed JWT). Expiry and audience are shown, and are the relying party's to check."""
    token = _read(file, _MAX_RESULT_BYTES).strip()
    header, claims = _token_parts(token)
    result = result_from_claims(claims)
    signature = "unchecked"
    if jwks is not None:
        signature = "valid" if _is_signed(token, header, _read(jwks, _MAX_RESULT_BYTES)) else "invalid"
    kid = header.get("kid")
    _print(
        {"signature": signature, "kid": kid if isinstance(kid, str) else None, **_result_json(result)}, as_json=as_json
    )
    if signature == "invalid":
        raise Rejection(ReasonCode.RESULT_SIGNATURE_INVALID, "result.signature", "not by a key of the JWKS")


def _token_parts(token: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = token.split(b".")
    if len(parts) != 3 or not token.isascii():
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result", f"{len(parts)} parts", "a JWT")
    header, claims = (
        decode_json_object(decode_base64url(part.decode("ascii"), "result"), "result") for part in parts[:2]
    )
    if header.get("typ") != RESULT_TYPE:
        raise MalformedEvidence(ReasonCode.RESULT_MALFORMED, "result.typ", str(header.get("typ")), RESULT_TYPE)
    return header, claims


def _is_signed(token: bytes, header: Mapping[str, Any], jwks: bytes) -> bool:
    """Whether a key of the set made the signature. ES256 only, whatever the header names."""
    keys = decode_json_object(jwks, "jwks").get("keys")
    if not isinstance(keys, list) or not keys:
        raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, "jwks.keys", None, "a list with at least one key")
    for key in keys:
        if not isinstance(key, dict) or key.get("kid") != header.get("kid"):
            continue
        try:
            jwt.api_jws.decode(token, jwt.PyJWK(key, _ALGORITHM), algorithms=[_ALGORITHM])
        except jwt.PyJWTError:
            continue
        return True
    return False


def _result_json(result: AttestationResult) -> dict[str, Any]:
    fields = asdict(result)
    fields["issued_at"] = time_text(result.issued_at)
    fields["expires_at"] = time_text(result.expires_at)
    fields["submodules"] = {
        name: {**part, "vector": dict(part["vector"])} for name, part in fields["submodules"].items()
    }
    return fields


def _read(path: Path, max_bytes: int) -> bytes:
    """The file, read to its end: securityfs reports size 0. Raises `file-unreadable`, `body-too-large`."""
    try:
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        raise MalformedEvidence(ReasonCode.FILE_UNREADABLE, str(path), error.strerror) from error
    if len(content) > max_bytes:
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, str(path), "larger", f"at most {max_bytes} bytes")
    return content


def _print(report: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        _print_json(report)
        return
    for name, value in report.items():
        if name != "findings":
            typer.echo(f"{name:18} {value if isinstance(value, str) else json.dumps(value)}")
    _print_findings(report)


def _print_findings(report: Mapping[str, Any]) -> None:
    for finding in report.get("findings", ()):
        typer.echo(f"finding: {finding['code']}: {finding['where']}: {finding['message']}")


def _print_json(report: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(report, indent=2))
