"""Names of the TPM's algorithms, by TPM_ALG_ID and TPM_ECC_CURVE (TPM 2.0 Library, Part 2, sections 6.3 and 6.4).

What is not listed is not read: a structure that names another algorithm is malformed to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

HashName = Literal["sha1", "sha256", "sha384", "sha512"]
KeyScheme = Literal["rsassa", "rsapss", "ecdsa", "rsaes", "oaep", "ecdh"]
Curve = Literal["P-256", "P-384", "P-521"]

ALG_NULL = 0x0010
HASH_NAMES: Mapping[int, HashName] = {0x0004: "sha1", 0x000B: "sha256", 0x000C: "sha384", 0x000D: "sha512"}
"""TPM_ALG_ID of the hashes that we compute (Part 2, section 6.3)."""
HASH_IDS: Mapping[str, int] = {name: identifier for identifier, name in HASH_NAMES.items()}
BANK_NAMES: Mapping[int, str] = {**HASH_NAMES, 0x0012: "sm3_256"}
"""PCR banks that a selection may name; SM3 is known by name and never computed."""
SCHEMES: Mapping[int, KeyScheme] = {
    0x0014: "rsassa",
    0x0015: "rsaes",
    0x0016: "rsapss",
    0x0017: "oaep",
    0x0018: "ecdsa",
    0x0019: "ecdh",
}
RSA_SCHEMES = frozenset({"rsassa", "rsapss", "rsaes", "oaep"})
ECC_SCHEMES = frozenset({"ecdsa", "ecdh"})
CURVES: Mapping[int, Curve] = {0x0003: "P-256", 0x0004: "P-384", 0x0005: "P-521"}
CURVE_BYTES: Mapping[Curve, int] = {"P-256": 32, "P-384": 48, "P-521": 66}
"""Size of a coordinate."""
CIPHERS: Mapping[int, str] = {0x0006: "aes", 0x0013: "sm4", 0x0026: "camellia"}
MODES: Mapping[int, str] = {0x0040: "ctr", 0x0041: "ofb", 0x0042: "cbc", 0x0043: "cfb", 0x0044: "ecb"}
KDFS: Mapping[int, str] = {0x0007: "mgf1", 0x0020: "kdf1-56a", 0x0021: "kdf2", 0x0022: "kdf1-108"}
