"""TPM2_ActivateCredential of a P-256 EK in software, written from the specification and apart from the product.

TPM 2.0 Library, Part 1, section 24 and annex C.6.4. It checks the integrity HMAC, so it fails as a TPM would.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from tests.forge.keys import SoftKey


def activate(ek: SoftKey, ak: SoftKey, blob: bytes, encrypted_secret: bytes) -> bytes:
    """The secret in the credential. Raises ValueError when it is for another AK."""
    private = ek.private
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    x, y = encrypted_secret[2:34], encrypted_secret[36:68]
    point = ec.EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), ec.SECP256R1()).public_key()
    shared = private.exchange(ec.ECDH(), point)
    own_x = private.public_key().public_numbers().x.to_bytes(32)
    seed = hashlib.sha256(b"\0\0\0\1" + shared + b"IDENTITY\0" + x + own_x).digest()
    size = int.from_bytes(blob[:2])
    integrity, identity = blob[2 : 2 + size], blob[2 + size :]
    mac_key = hmac.digest(seed, b"\0\0\0\1INTEGRITY\0" + (256).to_bytes(4), "sha256")
    if not hmac.compare_digest(hmac.digest(mac_key, identity + ak.name, "sha256"), integrity):
        raise ValueError("the credential is for another object")
    key = hmac.digest(seed, b"\0\0\0\1STORAGE\0" + ak.name + (128).to_bytes(4), "sha256")[:16]
    decryptor = Cipher(algorithms.AES(key), CFB(bytes(16))).decryptor()
    return (decryptor.update(identity) + decryptor.finalize())[2:]
