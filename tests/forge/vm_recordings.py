"""Turns evidence that was recorded on our test machines (tests/vectors/vm) into recordings in our layout.

Those quotes were taken with tpm2-tools, before there was an attester: they answer the nonce itself, their AK is no
child of the EK, and there is no binding key. So their challenge states the form `bare-nonce`, which no service issues
or accepts. What they show is a genuine boot.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from verifier.appraisal.endorsement_key import node_id_of
from verifier.evidence.tpm import parse_public
from verifier.wire.bundle import BootLog, EvidenceBundle, Nonce, TpmQuote
from verifier.wire.encoding import encode_base64url
from verifier.wire.recording import RecordedChallenge, RecordedEnrolment, Recording, recording_files

RECORDED_AT = 1_796_040_000
"""2026-11-30, noon: the day when the machines ran."""
QUOTED_PCRS = tuple(range(15))
_PCR_LINE = re.compile(r"(\d+)\s*: 0x([0-9A-Fa-f]{64})")


def vm_recording(case: Path) -> Recording:
    """The recording of the machine whose evidence lies in `case`."""
    ek, ak = (case / "ek.pub").read_bytes(), (case / "ak.pub").read_bytes()
    nonce = Nonce((case / "nonce").read_bytes())
    node_id = node_id_of(parse_public(ek))
    values = (case / "pcrs.yaml").read_text().split("sha256")[-1]
    pcrs = {int(index): bytes.fromhex(value) for index, value in _PCR_LINE.findall(values)}
    quote = TpmQuote(
        0,
        (case / "quote.attest").read_bytes(),
        (case / "quote.sig").read_bytes(),
        {"sha256": {pcr: pcrs[pcr] for pcr in QUOTED_PCRS}},
    )
    issuer = x509.load_pem_x509_certificate((case / "ca-issuer.pem").read_bytes()).public_bytes(Encoding.DER)
    return Recording(
        EvidenceBundle(node_id, nonce, (quote, BootLog(0, (case / "eventlog.bin").read_bytes()))),
        RecordedChallenge(
            nonce=encode_base64url(nonce),
            issued_at=RECORDED_AT,
            pcr_bank="sha256",
            pcrs=list(QUOTED_PCRS),
            form="bare-nonce",
            verifier_id="https://verifier.example",
        ),
        RecordedEnrolment(
            node_id=node_id,
            node_name=case.name,
            tenant="ml",
            cohort="prod-vm",
            ek_public=encode_base64url(ek),
            ak_public=encode_base64url(ak),
            ek_certificates=[encode_base64url(der) for der in ((case / "ekcert.der").read_bytes(), issuer)],
        ),
    )


def write_recording(recording: Recording, directory: Path) -> Path:
    """`directory` (made) holds `recording`."""
    directory.mkdir(parents=True)
    for name, content in recording_files(recording).items():
        (directory / name).write_bytes(content)
    return directory


def write_endorsements(case: Path, directory: Path) -> Path:
    """`directory` (made) trusts the CA that made the EK certificate in `case`."""
    (directory / "roots").mkdir(parents=True)
    (directory / "roots" / "root.pem").write_bytes((case / "ca-root.pem").read_bytes())
    return directory


def main() -> None:
    """Use: `python -m tests.forge.vm_recordings CASE... OUT`. OUT then holds recordings and endorsements."""
    *cases, out = (Path(argument) for argument in sys.argv[1:])
    for case in cases:
        write_recording(vm_recording(case), out / case.name)
        write_endorsements(case, out / "endorsements" / case.name)


if __name__ == "__main__":
    main()
