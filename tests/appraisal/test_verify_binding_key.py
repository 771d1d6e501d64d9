"""The numbered checks of the binding key: accepted, then one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.forge import attest
from tests.forge.evidence import (
    VERIFIER_ID,
    ForgedBinding,
    ForgedEvidence,
    accepted,
    certified,
    forged_binding,
    forged_node,
    measured,
)
from tests.forge.keys import (
    AES_128_CFB,
    BINDING_ATTRIBUTES,
    ECDSA_SHA256,
    NULL,
    SoftKey,
    attestation_key,
    binding_key,
    boot_policy,
    public_area,
    sized,
)
from verifier.appraisal.authenticate import authenticate
from verifier.appraisal.binding_key import VerifiedBindingKey
from verifier.appraisal.verify import VerifiedBundle, verify
from verifier.evidence.parse import parse_bundle
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import decode_base64url
from verifier.wire.failures import Refusal, Rejection

POLICY = boot_policy(3, 0)


def _verify(evidence: ForgedEvidence, known: VerifiedBindingKey | None = None) -> VerifiedBundle:
    parsed = parse_bundle(evidence.bundle())
    authentic = authenticate(parsed, evidence.node.enrolled, evidence.challenge, VERIFIER_ID, None)
    assert evidence.log is not None
    return verify(authentic, measured(evidence.log), known)


def _refused(change: Callable[[ForgedBinding], ForgedBinding]) -> ReasonCode:
    evidence = accepted()
    assert evidence.binding is not None
    with pytest.raises(Rejection) as caught:
        _verify(replace(evidence, binding=change(evidence.binding)))
    return caught.value.code


def _with_key(key: SoftKey) -> Callable[[ForgedBinding], ForgedBinding]:
    return lambda binding: certified(key, forged_node(), binding.reset_count, binding.restart_count)


def _key(**changed: object) -> SoftKey:
    """A binding key whose public area differs from the template in `changed`."""
    private = ec.generate_private_key(ec.SECP256R1())
    fields: dict[str, object] = {"attributes": BINDING_ATTRIBUTES, "policy": POLICY, **changed}
    area = public_area(private, **fields)  # type: ignore[arg-type] # the cases name real parameters
    return SoftKey(private, area, str(fields.get("name_alg", "sha256")))


def test_an_accepted_binding_key_is_told_as_a_jwk_of_its_point() -> None:
    evidence = accepted()
    verified = _verify(evidence)
    assert verified.binding_key is not None
    assert evidence.binding is not None
    private = evidence.binding.key.private
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    point, jwk = private.public_key().public_numbers(), verified.binding_key.jwk
    assert (jwk["kty"], jwk["crv"]) == ("EC", "P-256")
    coordinates = [decode_base64url(jwk[name], name) for name in ("x", "y")]
    assert coordinates == [point.x.to_bytes(32, "big"), point.y.to_bytes(32, "big")]


def test_check_1_a_certification_signed_by_another_ak_is_refused() -> None:
    other = attestation_key(which=1)
    assert _refused(lambda b: replace(b, signing_key=other)) is ReasonCode.BINDING_KEY_SIGNATURE_INVALID


def test_check_1_a_certification_of_another_scheme_is_refused() -> None:
    other = attestation_key("rsa-2048")
    assert _refused(lambda b: replace(b, signing_key=other)) is ReasonCode.BINDING_KEY_SIGNATURE_INVALID


def test_check_2_a_certification_of_another_key_is_refused() -> None:
    name = binding_key(4, 0).name
    assert _refused(lambda b: replace(b, name=name)) is ReasonCode.BINDING_KEY_CERTIFY_MISMATCH


def test_check_2_a_certification_for_another_node_is_refused() -> None:
    other = forged_binding(forged_node(which=1), 3, 0).qualifying_data
    assert _refused(lambda b: replace(b, qualifying_data=other)) is ReasonCode.BINDING_KEY_CERTIFY_MISMATCH


def test_check_2_a_certification_by_an_ak_under_another_parent_is_refused() -> None:
    signer = forged_node().ak.qualified_name(attest.OWNER)
    assert _refused(lambda b: replace(b, signer=signer)) is ReasonCode.BINDING_KEY_CERTIFY_MISMATCH


@pytest.mark.parametrize("counters", [(2, 0), (4, 0), (3, 1)])
def test_check_3_a_key_certified_in_another_boot_is_refused(counters: tuple[int, int]) -> None:
    reset, restart = counters
    changed = lambda b: replace(b, reset_count=reset, restart_count=restart)  # noqa: E731 - one change
    assert _refused(changed) is ReasonCode.BINDING_KEY_COUNTERS_MISMATCH


def test_check_3_the_key_of_the_boot_before_a_restart_is_refused() -> None:
    old = forged_binding(forged_node(), 3, 0)
    evidence = replace(accepted(restart_count=1), binding=old)
    with pytest.raises(Rejection) as caught:
        _verify(evidence)
    assert caught.value.code is ReasonCode.BINDING_KEY_COUNTERS_MISMATCH


@pytest.mark.parametrize("bit", [1, 4, 5, 6, 7, 10, 11, 2, 16, 17, 18])
def test_check_4_any_other_attribute_is_refused(bit: int) -> None:
    key = _key(attributes=BINDING_ATTRIBUTES ^ (1 << bit))
    assert _refused(_with_key(key)) is ReasonCode.BINDING_KEY_UNSUITABLE


@pytest.mark.parametrize(
    "changed",
    [{"name_alg": "sha384"}, {"symmetric": AES_128_CFB}, {"scheme": ECDSA_SHA256}, {"kdf": bytes.fromhex("0020000b")}],
    ids=lambda changed: next(iter(changed)),
)
def test_check_4_any_other_parameter_is_refused(changed: dict[str, object]) -> None:
    assert _refused(_with_key(_key(**changed))) is ReasonCode.BINDING_KEY_UNSUITABLE


def test_check_4_another_curve_is_refused() -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    key = SoftKey(private, public_area(private, BINDING_ATTRIBUTES, POLICY))
    assert _refused(_with_key(key)) is ReasonCode.BINDING_KEY_UNSUITABLE


def test_check_4_an_rsa_key_is_refused() -> None:
    private = attestation_key("rsa-2048").private
    key = SoftKey(private, public_area(private, BINDING_ATTRIBUTES, POLICY))
    assert _refused(_with_key(key)) is ReasonCode.BINDING_KEY_UNSUITABLE


def test_check_4_a_point_off_the_curve_is_refused() -> None:
    good = binding_key(3, 0)
    key = SoftKey(good.private, good.tpmt_public[:-68] + sized(bytes(31) + b"\1") + sized(bytes(31) + b"\2"))
    assert len(key.tpmt_public) == len(good.tpmt_public)
    assert _refused(_with_key(key)) is ReasonCode.BINDING_KEY_UNSUITABLE


@pytest.mark.parametrize("hierarchy", [attest.OWNER, attest.ENDORSEMENT, bytes.fromhex("4000000c")])
def test_check_5_a_primary_of_another_hierarchy_is_refused(hierarchy: bytes) -> None:
    qualified = binding_key(3, 0).qualified_name(hierarchy)
    assert _refused(lambda b: replace(b, qualified_name=qualified)) is ReasonCode.BINDING_KEY_NOT_NULL_PRIMARY


def test_check_5_a_child_of_a_null_primary_is_refused() -> None:
    qualified = binding_key(3, 0).qualified_name(binding_key(4, 0).qualified_name(attest.NULL_HIERARCHY))
    assert _refused(lambda b: replace(b, qualified_name=qualified)) is ReasonCode.BINDING_KEY_NOT_NULL_PRIMARY


@pytest.mark.parametrize("policy", [b"", bytes(32), boot_policy(3, 1), boot_policy(4, 0)], ids=len)
def test_check_6_a_policy_on_anything_but_this_boots_counters_is_refused(policy: bytes) -> None:
    assert _refused(_with_key(_key(policy=policy))) is ReasonCode.BINDING_KEY_POLICY_MISMATCH


def test_a_known_key_of_the_same_boot_is_not_checked_again() -> None:
    evidence = accepted()
    first = _verify(evidence).binding_key
    assert first is not None
    assert _verify(replace(evidence, clock_ms=20_000), first).binding_key is first


def test_a_known_key_does_not_vouch_for_other_bytes() -> None:
    evidence = accepted()
    known = _verify(evidence).binding_key
    assert evidence.binding is not None
    forged = replace(evidence.binding, signing_key=attestation_key(which=1))
    with pytest.raises(Rejection) as caught:
        _verify(replace(evidence, binding=forged), known)
    assert caught.value.code is ReasonCode.BINDING_KEY_SIGNATURE_INVALID


def test_a_known_key_does_not_outlive_its_boot_or_move_to_another_node() -> None:
    known = _verify(accepted()).binding_key
    assert known is not None
    rebooted = replace(accepted(reset_count=4), binding=forged_binding(forged_node(), 3, 0))
    with pytest.raises(Rejection) as caught:
        _verify(rebooted, known)
    assert caught.value.code is ReasonCode.BINDING_KEY_COUNTERS_MISMATCH
    other = forged_node(which=1)
    stolen = replace(accepted(node=other), binding=forged_binding(forged_node(), 3, 0))
    with pytest.raises(Rejection) as stolen_caught:
        _verify(stolen, known)
    assert stolen_caught.value.code is ReasonCode.BINDING_KEY_SIGNATURE_INVALID


def test_every_byte_of_the_binding_key_certificate_matters() -> None:
    """A node that binds a damaged certificate into its quote is refused with a code, wherever the damage is."""
    evidence = accepted()
    assert evidence.binding is not None
    item = evidence.binding.item()
    for field in ("public", "certify", "certify_signature"):
        body = getattr(item, field)
        for position in range(len(body)):
            damaged = body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :]
            change: dict[str, bytes] = {field: damaged}
            changed = replace(evidence, binding=None, extra_items=(replace(item, **change),))  # type: ignore[arg-type] # bytes fields only
            with pytest.raises(Refusal) as caught:
                _verify(changed)
            assert caught.value.code in {
                ReasonCode.PUBLIC_AREA_MALFORMED,
                ReasonCode.ATTEST_MALFORMED,
                ReasonCode.SIGNATURE_MALFORMED,
                ReasonCode.QUOTE_NOT_TPM_GENERATED,
                ReasonCode.QUOTE_TYPE_WRONG,
                ReasonCode.BINDING_KEY_SIGNATURE_INVALID,
                ReasonCode.BINDING_KEY_CERTIFY_MISMATCH,
            }, (field, position)


def test_null_parameters_are_the_template() -> None:
    assert _key(symmetric=NULL, scheme=NULL).tpmt_public[:10] == binding_key(3, 0).tpmt_public[:10]
