"""What an enrolled node's keys must be called in everything that its TPM signs.

Source: TPM 2.0 Library, Part 1, section 16 (names) and 26.5 (qualified names). Each name and qualified name is taken
with the object's *own* nameAlg: a P-384 EK has SHA-384 names, its SHA-256 AK has SHA-256 ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from verifier.appraisal.attestation_key import check_ak
from verifier.appraisal.context import EnrolledNode
from verifier.evidence.tpm import PublicArea, parse_public
from verifier.evidence.tpm_algorithms import HASH_IDS

HANDLE_NULL = 0x40000007
HANDLE_ENDORSEMENT = 0x4000000B
"""TPM_RH_NULL and TPM_RH_ENDORSEMENT: a primary's qualified name begins with its hierarchy (Part 2, section 7.4)."""


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The AK's Name, and its qualified name as a child of the EK, which every structure that it signs carries."""

    ak_name: bytes
    ak_qualified_name: bytes


def qualified_name_of_primary(hierarchy: int, public: PublicArea) -> bytes:
    """The qualified name of a primary object: nameAlg || H(handle || Name)."""
    return _qualified(hierarchy.to_bytes(4, "big"), public)


def qualified_name_of_child(parent_qualified_name: bytes, public: PublicArea) -> bytes:
    """The qualified name of a child: nameAlg || H(QN(parent) || Name), with the child's nameAlg."""
    return _qualified(parent_qualified_name, public)


def _qualified(prefix: bytes, public: PublicArea) -> bytes:
    digest = hashlib.new(public.name_alg, prefix + public.name).digest()
    return HASH_IDS[public.name_alg].to_bytes(2, "big") + digest


def key_names(node: EnrolledNode) -> KeyNames:
    """The names that `node`'s AK has as a child of its EK.

    Raises Rejection `ak-attributes-unsuitable`, `ak-algorithm-unsupported`: an AK that could sign what no TPM made
    proves nothing, however it got into the store.
    """
    return _key_names(node.ek.raw, node.ak.raw)


@lru_cache(maxsize=65536)
def _key_names(ek_raw: bytes, ak_raw: bytes) -> KeyNames:
    # By raw bytes, whose hash Python keeps: TPMT_PUBLIC is all that a PublicArea is made of.
    ek, ak = (parse_public(len(raw).to_bytes(2, "big") + raw) for raw in (ek_raw, ak_raw))
    check_ak(ak)
    parent = qualified_name_of_primary(HANDLE_ENDORSEMENT, ek)
    return KeyNames(ak.name, qualified_name_of_child(parent, ak))
