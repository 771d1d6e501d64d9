from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forge import attest as forge
from tests.forge.keys import AES_128_CFB, ALG, NULL, EkKind, attestation_key, binding_key, endorsement_key, sized
from verifier.evidence import attest as attest_module
from verifier.evidence.attest import (
    CertifyAttest,
    EcdsaSignature,
    QuoteAttest,
    RsaSignature,
    parse_attest,
    parse_signature,
)
from verifier.evidence.tpm import EccPublic, RsaPublic, SignatureScheme, SymmetricCipher, parse_public
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

VM = Path(__file__).parent.parent / "vectors" / "vm"
GRUB, UKI = VM / "sb-on-good", VM / "uki-sb-on"


def _quote_bytes(magic: int = forge.MAGIC, kind: int = forge.QUOTE, body: bytes | None = None, safe: int = 1) -> bytes:
    return forge.attest(
        kind,
        forge.quote_body("sha256", {0: bytes(32), 7: bytes(32)}) if body is None else body,
        signer=b"\0\x0b" + bytes(32),
        extra_data=b"nonce",
        clock_ms=5,
        reset_count=6,
        restart_count=7,
        magic=magic,
        safe=safe,
    )


def _certify_bytes() -> bytes:
    return _quote_bytes(kind=forge.CERTIFY, body=sized(b"\0\x0bname") + sized(b"\0\x0bqualified"))


def _refused(parser: object, content: bytes) -> ReasonCode:
    assert callable(parser)
    with pytest.raises(MalformedEvidence) as refusal:
        parser(content)
    return refusal.value.code


def test_a_quote_of_a_real_tpm_parses_to_its_fields() -> None:
    raw = (GRUB / "quote.attest").read_bytes()
    quote = parse_attest(raw)
    assert isinstance(quote, QuoteAttest)
    assert quote.raw == raw
    assert quote.extra_data == (GRUB / "nonce").read_bytes()
    assert [(s.bank, s.pcrs) for s in quote.selections] == [("sha256", tuple(range(15)))]
    assert (quote.clock.reset_count, quote.clock.restart_count) == (3, 0)
    assert len(quote.pcr_digest) == 32


def test_a_forged_quote_parses_to_the_values_it_was_made_of() -> None:
    quote = parse_attest(_quote_bytes())
    assert isinstance(quote, QuoteAttest)
    assert (quote.clock.clock_ms, quote.clock.reset_count, quote.clock.restart_count) == (5, 6, 7)
    assert quote.clock.safe
    assert quote.extra_data == b"nonce"
    assert quote.selections[0].pcrs == (0, 7)


def test_a_certification_parses_to_its_names() -> None:
    certify = parse_attest(_certify_bytes())
    assert isinstance(certify, CertifyAttest)
    assert (certify.name, certify.qualified_name) == (b"\0\x0bname", b"\0\x0bqualified")


def test_a_structure_without_the_tpm_magic_is_refused_whatever_follows() -> None:
    assert _refused(parse_attest, _quote_bytes(magic=0xFF544346)) is ReasonCode.QUOTE_NOT_TPM_GENERATED


@pytest.mark.parametrize("kind", [forge.TIME, 0x8014, 0x801A, 0])
def test_a_structure_of_another_command_is_refused(kind: int) -> None:
    assert _refused(parse_attest, _quote_bytes(kind=kind)) is ReasonCode.QUOTE_TYPE_WRONG


def test_safe_is_zero_or_one() -> None:
    assert _refused(parse_attest, _quote_bytes(safe=2)) is ReasonCode.ATTEST_MALFORMED


def test_an_inactive_bank_gives_an_empty_selection() -> None:
    for selection in (forge.selection([("sha384", ())]), forge.selection([])):
        quote = parse_attest(_quote_bytes(body=selection + sized(bytes(32))))
        assert isinstance(quote, QuoteAttest)
        assert not any(s.pcrs for s in quote.selections)


def test_a_quote_over_two_banks_parses() -> None:
    body = forge.selection([("sha1", (0, 1)), ("sha256", (23,))]) + sized(bytes(32))
    quote = parse_attest(_quote_bytes(body=body))
    assert isinstance(quote, QuoteAttest)
    assert [(s.bank, s.pcrs) for s in quote.selections] == [("sha1", (0, 1)), ("sha256", (23,))]


@pytest.mark.parametrize(
    "selection",
    [
        forge.selection([("sha256", (0,)), ("sha256", (1,))]),
        struct.pack(">IHB", 1, 0x0099, 3) + bytes(3),
        struct.pack(">IHB", 1, ALG["sha256"], 5) + bytes(5),
        struct.pack(">I", 17),
        struct.pack(">I", 0xFFFFFFFF),
    ],
    ids=["bank twice", "unknown bank", "bitmap too long", "too many", "far too many"],
)
def test_a_selection_that_says_no_clear_thing_is_malformed(selection: bytes) -> None:
    assert _refused(parse_attest, _quote_bytes(body=selection + sized(bytes(32)))) is ReasonCode.ATTEST_MALFORMED


def test_real_public_areas_parse_to_their_names_and_kinds() -> None:
    ecc = parse_public((GRUB / "ak.pub").read_bytes())
    rsa = parse_public((UKI / "ak.pub").read_bytes())
    assert isinstance(ecc.key, EccPublic)
    assert ecc.key.curve == "P-256"
    assert isinstance(rsa.key, RsaPublic)
    assert (rsa.key.bits, rsa.key.exponent) == (2048, 65537)
    assert ecc.scheme == SignatureScheme("ecdsa", "sha256")
    assert ecc.attributes == 0x50072
    assert ecc.tpm2b == (GRUB / "ak.pub").read_bytes()
    assert ecc.name[:2] == b"\0\x0b"


@pytest.mark.parametrize("kind", ["rsa-2048", "p-256", "p-384"])
def test_every_kind_of_ek_parses_to_the_key_it_was_made_of(kind: EkKind) -> None:
    soft = endorsement_key(kind)
    public = parse_public(soft.tpm2b)
    assert public.name == soft.name
    assert public.symmetric == SymmetricCipher("aes", 256 if kind == "p-384" else 128, "cfb")
    assert public.scheme is None


def _public_bytes(**changes: bytes) -> bytes:
    parts = {
        "type": b"\x00\x23",
        "name_alg": b"\x00\x0b",
        "attributes": b"\x00\x02\x04\x32",
        "policy": sized(bytes(32)),
        "symmetric": NULL,
        "scheme": NULL,
        "curve": b"\x00\x03",
        "kdf": NULL,
        "x": sized(b"\1" * 32),
        "y": sized(b"\2" * 32),
        "tail": b"",
    }
    return sized(b"".join((parts | changes).values()))


def test_a_key_exchange_scheme_and_a_key_derivation_are_told_from_none() -> None:
    assert parse_public(_public_bytes()).scheme is None
    exchange = parse_public(_public_bytes(scheme=b"\x00\x19\x00\x0b", kdf=b"\x00\x20\x00\x0b"))
    assert exchange.scheme == SignatureScheme("ecdh", "sha256")
    assert exchange.kdf == "kdf1-56a/sha256"


@pytest.mark.parametrize(
    "change",
    [
        {"type": b"\x00\x08"},
        {"type": b"\x00\x25"},
        {"name_alg": b"\x00\x10"},
        {"name_alg": b"\x00\x12"},
        {"policy": sized(bytes(65))},
        {"symmetric": b"\x00\x06\x00\x80\x00\x99"},
        {"symmetric": b"\x00\x01\x00\x80\x00\x43"},
        {"scheme": b"\x00\x14\x00\x0b"},
        {"scheme": b"\x00\x1a\x00\x0b\x00\x00"},
        {"curve": b"\x00\x20"},
        {"kdf": b"\x00\x99\x00\x0b"},
        {"x": sized(b"\1" * 33)},
        {"tail": b"\0"},
    ],
)
def test_a_public_area_with_a_field_that_we_do_not_know_is_malformed(change: dict[str, bytes]) -> None:
    assert _refused(parse_public, _public_bytes(**change)) is ReasonCode.PUBLIC_AREA_MALFORMED


@pytest.mark.parametrize(
    ("bits", "exponent", "modulus"),
    [
        (2048, 0, b"\x7f" + b"\xff" * 255),
        (1024, 0, b"\xff" * 256),
        (2048, 0, b"\xff" * 255 + b"\xfe"),
        (2048, 2, b"\xff" * 256),
        (2048, 1, b"\xff" * 256),
    ],
    ids=["shorter than said", "longer than said", "even", "even exponent", "exponent one"],
)
def test_an_rsa_key_whose_numbers_contradict_its_size_is_malformed(bits: int, exponent: int, modulus: bytes) -> None:
    head = struct.pack(">HHI", 1, 0x0B, 0x300B2) + sized(b"") + AES_128_CFB + NULL
    area = sized(head + struct.pack(">HI", bits, exponent) + sized(modulus))
    assert _refused(parse_public, area) is ReasonCode.PUBLIC_AREA_MALFORMED


def test_real_signatures_parse_to_their_scheme() -> None:
    ecdsa = parse_signature((GRUB / "quote.sig").read_bytes())
    rsassa = parse_signature((UKI / "quote.sig").read_bytes())
    assert isinstance(ecdsa, EcdsaSignature)
    assert isinstance(rsassa, RsaSignature)
    assert ecdsa.scheme == SignatureScheme("ecdsa", "sha256")
    assert len(rsassa.value) == 256


@pytest.mark.parametrize("head", [b"\x00\x05\x00\x0b", b"\x00\x10", b"\x00\x19\x00\x0b", b"\x00\x18\x00\x12"])
def test_a_signature_by_a_scheme_that_we_do_not_verify_is_malformed(head: bytes) -> None:
    content = head + sized(bytes(32)) + sized(bytes(32))
    assert _refused(parse_signature, content) is ReasonCode.SIGNATURE_MALFORMED


CASES = [
    (parse_attest, _quote_bytes(), ReasonCode.ATTEST_MALFORMED),
    (parse_attest, _certify_bytes(), ReasonCode.ATTEST_MALFORMED),
    (parse_public, attestation_key("p-256").tpm2b, ReasonCode.PUBLIC_AREA_MALFORMED),
    (parse_public, endorsement_key("rsa-2048").tpm2b, ReasonCode.PUBLIC_AREA_MALFORMED),
    (parse_public, binding_key(1, 2).tpm2b, ReasonCode.PUBLIC_AREA_MALFORMED),
    (parse_signature, attestation_key("p-256").sign(b"m"), ReasonCode.SIGNATURE_MALFORMED),
    (parse_signature, (UKI / "quote.sig").read_bytes(), ReasonCode.SIGNATURE_MALFORMED),
]


@pytest.mark.parametrize(("parser", "content", "code"), CASES)
def test_a_structure_cut_at_any_byte_or_with_one_more_is_malformed(
    parser: object, content: bytes, code: ReasonCode
) -> None:
    assert all(_refused(parser, content[:size]) is code for size in range(len(content)))
    assert _refused(parser, content + b"\0") is code


@given(st.sampled_from(CASES), st.binary(max_size=300), st.integers(0, 200))
@settings(max_examples=400, deadline=None)
def test_arbitrary_bytes_raise_only_malformed_evidence(
    case: tuple[object, bytes, ReasonCode], noise: bytes, position: int
) -> None:
    parser, content, _ = case
    assert callable(parser)
    for candidate in (noise, content[:position] + noise + content[position + len(noise) :]):
        try:
            parser(candidate)
        except MalformedEvidence as refusal:
            assert refusal.code in {
                ReasonCode.ATTEST_MALFORMED,
                ReasonCode.QUOTE_NOT_TPM_GENERATED,
                ReasonCode.QUOTE_TYPE_WRONG,
                ReasonCode.PUBLIC_AREA_MALFORMED,
                ReasonCode.SIGNATURE_MALFORMED,
            }


QUOTE_OF_COMMON_SHAPE = (UKI / "quote.attest").read_bytes()


@pytest.mark.parametrize("position", range(len(_quote_bytes())))
def test_a_quote_reads_the_same_at_once_and_field_by_field(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (_quote_bytes(), QUOTE_OF_COMMON_SHAPE):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(content)
            changed[position % len(content)] ^= flip
            at_once = _outcome(bytes(changed))
            with monkeypatch.context() as general:
                general.setattr(attest_module, "_common_quote", lambda _: None)
                assert _outcome(bytes(changed)) == at_once


def test_the_quote_of_a_real_tpm_has_the_common_shape() -> None:
    assert attest_module._common_quote(QUOTE_OF_COMMON_SHAPE) == parse_attest(QUOTE_OF_COMMON_SHAPE)


def _outcome(content: bytes) -> object:
    try:
        return parse_attest(content)
    except MalformedEvidence as refusal:
        return refusal.failure
