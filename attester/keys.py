"""The endorsement key, the attestation key under it, and what the AK signs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256

from tpm2_pytss import TSS2_Exception
from tpm2_pytss.constants import ESYS_TR, TPM2_ALG, TPM2_CAP, TPM2_RC
from tpm2_pytss.types import (
    TPM2B_ENCRYPTED_SECRET,
    TPM2B_ID_OBJECT,
    TPM2B_PRIVATE,
    TPM2B_PUBLIC,
    TPM2B_SENSITIVE_CREATE,
    TPMS_ATTEST,
    TPMS_CONTEXT,
    TPMT_SIG_SCHEME,
)

from attester.templates import (
    EK_CERTIFICATE_INDEX,
    INTERMEDIATE_CERTIFICATE_INDICES,
    AkType,
    EkType,
    ak_template,
    ek_template,
)
from attester.tpm import Tpm, pcr_selection, tpm_errors, tpm_failure
from verifier.wire.bundle import NodeId
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection, Unavailable
from verifier.wire.signed_request import RequestLabel, SignedRequest, message_to_sign

MAX_CERTIFICATES = 8
MAX_CERTIFICATE_BYTES = 16 * 1024
QUOTE_TRIES = 3
_NV_CHUNK_BYTES = 512
"""No TPM reads less at once; many refuse more than 1,024."""
_PERSISTENT_EK: Mapping[EkType, int] = {
    EkType.RSA_2048: 0x81010001,
    EkType.P_256: 0x8101000A,
    EkType.P_384: 0x81010016,
}
"""Where provisioning keeps an EK (TCG provisioning guidance): deriving an RSA one can take a TPM half a minute."""


@dataclass(frozen=True, slots=True)
class EndorsementKey:
    """An EK as the TPM holds it: TPM2B_PUBLIC, certificates as they lie in NV (leaf first, perhaps none), node id."""

    kind: EkType
    public: bytes
    certificates: tuple[bytes, ...]
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class AkBlob:
    """An AK that this TPM can load under that EK: TPM2B_PUBLIC and TPM2B_PRIVATE (encrypted by the TPM)."""

    ek_kind: EkType
    public: bytes
    private: bytes

    @property
    def name(self) -> bytes:
        """The TPM name: 000B || SHA-256(TPMT_PUBLIC)."""
        return b"\0\x0b" + sha256(self.public[2:]).digest()


@dataclass(frozen=True, slots=True)
class Quote:
    """TPMS_ATTEST, TPMT_SIGNATURE and the PCR values that together give its pcrDigest."""

    attest: bytes
    signature: bytes
    pcrs: Mapping[int, bytes]


def read_endorsement_key(tpm: Tpm, kind: EkType) -> EndorsementKey:
    """The EK of `kind`, derived or read from its persistent handle, with the certificates in NV.

    Raises Unavailable `tpm-failed`, `tpm-unavailable`. Does not check that the certificate is of this key: the
    verifier does.
    """
    with tpm_errors("endorsement key"), _endorsement_key(tpm, kind) as handle:
        public, _, _ = tpm.esapi.read_public(handle)
        raw = bytes(public.marshal())
        node_id = NodeId(sha256(public.publicArea.to_der()).hexdigest())
    return EndorsementKey(kind, raw, read_certificates(tpm, kind), node_id)


def read_certificates(tpm: Tpm, kind: EkType) -> tuple[bytes, ...]:
    """The EK's certificate and then the manufacturer's intermediates, as far as the TPM stores any."""
    with tpm_errors("EK certificate"):
        first = EK_CERTIFICATE_INDEX[kind]
        indices = [index for index in (first,) if index in _nv_indices(tpm, first, 1)]
        if indices:
            present = _nv_indices(tpm, INTERMEDIATE_CERTIFICATE_INDICES.start, MAX_CERTIFICATES - 1)
            indices += [index for index in present if index in INTERMEDIATE_CERTIFICATE_INDICES]
        return tuple(_read_nv(tpm, index) for index in indices)


def create_ak(tpm: Tpm, ek_kind: EkType, ak_kind: AkType) -> AkBlob:
    """A new AK under the EK; nothing of it stays in the TPM. Raises Unavailable `tpm-failed`."""
    with tpm_errors("TPM2_Create"), _endorsement_key(tpm, ek_kind) as ek, _ek_authorisation(tpm, ek_kind) as session:
        private, public, *_ = tpm.esapi.create(ek, TPM2B_SENSITIVE_CREATE(), ak_template(ak_kind), session1=session)
        return AkBlob(ek_kind, bytes(public.marshal()), bytes(private.marshal()))


class AttestationKey:
    """An AK that can be loaded again and again, by its saved context where that still works (one load a boot)."""

    def __init__(self, blob: AkBlob) -> None:
        self.blob = blob
        self._context: TPMS_CONTEXT | None = None

    @contextmanager
    def loaded(self, tpm: Tpm) -> Iterator[ESYS_TR]:
        """The AK's handle inside the block.

        Raises Rejection `ak-not-loadable`: the TPM was cleared, or it is another TPM; enrol again.
        """
        with tpm.transient(self._load(tpm)) as handle:
            yield handle

    def _load(self, tpm: Tpm) -> ESYS_TR:
        if self._context is not None:
            try:
                return tpm.esapi.context_load(self._context)
            except TSS2_Exception:
                # A context dies with the boot; the blob does not.
                self._context = None
        handle = load_ak(tpm, self.blob)
        try:
            self._context = tpm.esapi.context_save(handle)
        except TSS2_Exception:
            self._context = None
        return handle


def load_ak(tpm: Tpm, blob: AkBlob) -> ESYS_TR:
    """The handle of the AK, to be flushed by the caller. Raises `ak-not-loadable`, `tpm-failed`."""
    try:
        private, _ = TPM2B_PRIVATE.unmarshal(blob.private)
        public, _ = TPM2B_PUBLIC.unmarshal(blob.public)
    except TSS2_Exception as error:
        raise Rejection(ReasonCode.AK_NOT_LOADABLE, "attestation key", "damaged") from error
    with (
        tpm_errors("endorsement key"),
        _endorsement_key(tpm, blob.ek_kind) as ek,
        _ek_authorisation(tpm, blob.ek_kind) as session,
    ):
        try:
            return tpm.esapi.load(ek, private, public, session1=session)
        except TSS2_Exception as error:
            if int(error.error) in (int(TPM2_RC.INTEGRITY), int(TPM2_RC.BINDING)):
                raise Rejection(ReasonCode.AK_NOT_LOADABLE, "attestation key", f"0x{int(error.rc):x}") from error
            raise tpm_failure(error, "TPM2_Load") from error


def activate_credential(tpm: Tpm, ak: AttestationKey, credential_blob: bytes, encrypted_secret: bytes) -> bytes:
    """The secret that the verifier sealed for this EK and AK name.

    Both arguments are without their outer sizes. Raises Rejection `credential-mismatch` when the TPM refuses it.
    """
    kind = ak.blob.ek_kind
    try:
        blob = TPM2B_ID_OBJECT(credential=credential_blob)
        seed = TPM2B_ENCRYPTED_SECRET(secret=encrypted_secret)
    except IndexError as error:
        # Longer than any TPM structure: the library's fixed buffers refuse it.
        raise Rejection(ReasonCode.CREDENTIAL_MISMATCH, "credential", "too long") from error
    with (
        ak.loaded(tpm) as handle,
        tpm_errors("endorsement key"),
        _endorsement_key(tpm, kind) as ek,
        _ek_authorisation(tpm, kind) as session,
    ):
        try:
            secret = tpm.esapi.activate_credential(handle, ek, blob, seed, session1=ESYS_TR.PASSWORD, session2=session)
        except TSS2_Exception as error:
            observed = f"response code 0x{int(error.rc):x}"
            raise Rejection(ReasonCode.CREDENTIAL_MISMATCH, "TPM2_ActivateCredential", observed) from error
        return bytes(secret)


def quote(tpm: Tpm, ak_handle: ESYS_TR, bank: str, pcrs: tuple[int, ...], extra_data: bytes) -> Quote:
    """A quote by the AK, and PCR values that give its pcrDigest.

    PCRs change between reading and quoting; then it is done again, three times in all. Raises Unavailable
    `pcr-digest-mismatch` when they still disagree, Rejection `pcr-bank-inactive`.
    """
    for _ in range(QUOTE_TRIES):
        values = tpm.read_pcrs(bank, pcrs)
        with tpm_errors("TPM2_Quote"):
            attest, signature = tpm.esapi.quote(ak_handle, pcr_selection(bank, tuple(values)), extra_data)
            raw = bytes(attest)
            structure, _ = TPMS_ATTEST.unmarshal(raw)
            pcr_digest = bytes(structure.attested.quote.pcrDigest)
            # Both AK schemes sign with SHA-256, and pcrDigest is by the signing scheme's hash.
            if pcr_digest == sha256(b"".join(values.values())).digest():
                return Quote(raw, bytes(signature.marshal()), values)
    raise Unavailable(ReasonCode.PCR_DIGEST_MISMATCH, "tpm.quote", f"PCRs changed in {QUOTE_TRIES} tries")


def sign_request(tpm: Tpm, ak_handle: ESYS_TR, label: RequestLabel, body: bytes) -> SignedRequest:
    """`body` signed by the AK for the purpose `label`, over a ticket by which the TPM says that it hashed it itself."""
    with tpm_errors("TPM2_Sign"):
        digest, ticket = tpm.esapi.hash(message_to_sign(label, body), TPM2_ALG.SHA256, ESYS_TR.ENDORSEMENT)
        signature = tpm.esapi.sign(ak_handle, digest, TPMT_SIG_SCHEME(scheme=TPM2_ALG.NULL), ticket)
        return SignedRequest(body, bytes(signature.marshal()))


@contextmanager
def _endorsement_key(tpm: Tpm, kind: EkType) -> Iterator[ESYS_TR]:
    persistent = _persistent_ek(tpm, kind)
    if persistent is not None:
        yield persistent
        return
    handle, *_ = tpm.esapi.create_primary(TPM2B_SENSITIVE_CREATE(), ek_template(kind), ESYS_TR.ENDORSEMENT)
    with tpm.transient(handle):
        yield handle


def _persistent_ek(tpm: Tpm, kind: EkType) -> ESYS_TR | None:
    index = _PERSISTENT_EK[kind]
    _, capability = tpm.esapi.get_capability(TPM2_CAP.HANDLES, index, 1)
    handles = capability.data.handles
    if [int(handle) for handle in handles] != [index]:
        return None
    handle = tpm.esapi.tr_from_tpmpublic(index)
    public, _, _ = tpm.esapi.read_public(handle)
    # Something else may be persisted there: only a key of the EK template, whatever its unique field, is taken.
    template = ek_template(kind)
    public.publicArea.unique = template.publicArea.unique
    return handle if bytes(public.publicArea.marshal()) == bytes(template.publicArea.marshal()) else None


def _ek_authorisation(tpm: Tpm, kind: EkType) -> AbstractContextManager[ESYS_TR]:
    if kind is EkType.P_384:
        # High-range EKs have userWithAuth: the empty password is enough.
        return nullcontext(ESYS_TR.PASSWORD)
    return _endorsement_policy(tpm)


@contextmanager
def _endorsement_policy(tpm: Tpm) -> Iterator[ESYS_TR]:
    with tpm.policy_session() as session:
        tpm.esapi.policy_secret(ESYS_TR.ENDORSEMENT, session, b"", b"", b"", 0)
        yield session


def _nv_indices(tpm: Tpm, first: int, count: int) -> list[int]:
    _, capability = tpm.esapi.get_capability(TPM2_CAP.HANDLES, first, count)
    handles = capability.data.handles
    return [int(handle) for handle in handles]


def _read_nv(tpm: Tpm, index: int) -> bytes:
    handle = tpm.esapi.tr_from_tpmpublic(index)
    public, _ = tpm.esapi.nv_read_public(handle)
    size = int(public.nvPublic.dataSize)
    if size > MAX_CERTIFICATE_BYTES:
        raise Rejection(ReasonCode.CERTIFICATE_MALFORMED, f"nv 0x{index:08x}", f"{size} bytes")
    content = b""
    while len(content) < size:
        content += bytes(tpm.esapi.nv_read(handle, min(_NV_CHUNK_BYTES, size - len(content)), len(content)))
    return content
