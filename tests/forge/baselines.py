"""Baselines for the boots that were recorded on our test machines, open to change before they are compiled.

JSON is YAML, and every scalar in it is quoted: documents are written as JSON.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

from policies.compiler import CompiledBaseline, compile_baseline
from policies.loader import load_baseline

OVMF_BLOBS = [
    "32dee58fd15713bb7af2790344dadcc52dd1bcd30c03d5b9616c8c0a0887fe2f",
    "a644ed209b188dd428ea3e15c0b1dbbc1ad05d406bb2857cac4a73b98d0b6b4f",
]
SHIM = "80a66d53a945d2286fcadd780fae1c225aa732079cd67b5225dc78aaab4e2ff8"
GRUB = "a68f6d71ebddaa19751ff8d729f67d11b0df8e4c49400c3e7e90de16119e1265"
KERNEL = "61e79ca0acd7e9f18984bea7b44650801ed54fd95a8786c16c583b86acf9d538"
INITRD = "9d9ff55dd14563a6a2867ee883c669ad8353b85848facf14d01479598ba700c2"
KERNEL_FILE = "85667e6c72245133bd7e3e80bac7d16b26fda15c0a3c68faa4b713850ea526cd"
GRUB_CONFIG = "468efc188c533899458939560ce2a9fc9629432b70e7eeb4449e9b4ca4122e8d"
MOK_LIST = "342c88bb9fde2c45eeaa17321262b089181e7e841ef5a4a5e8ed240920026f97"
MOK_LIST_X = "45e89b4a5f8283cd8ae7c66bda8346697120c84880537aadb49a665c7d7eec0f"
MOK_LIST_TRUSTED = "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a"
MICROSOFT_CA = "48e99b991f57fc52f76149599bff0a58c47154229b9f8d603ac40d3500248507"
DEBIAN_CA = "079646974bce09b1f04da67bd722d1fb0947ae4c4010bccdbba52d5b23cbf1a2"

_GOOD: dict[str, Any] = {
    "apiVersion": "nodewarden.dev/v1",
    "kind": "Baseline",
    "metadata": {
        "name": "test-nodes",
        "version": "1.0.0",
        "summary": "Debian 12 on OVMF, Secure Boot on",
        "notBefore": "2026-11-01T00:00:00Z",
        "expires": "2027-04-01T00:00:00Z",
    },
    "appliesTo": {"tenants": ["ml"], "cohorts": ["prod-*"]},
    "evidence": {
        "maxAgeSeconds": 300,
        "pcrBank": "sha256",
        "requirePcrReplay": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14],
    },
    "tpm": {"manufacturers": [{"id": "00001014"}], "ekChain": "required"},
    "secureBoot": {"enabled": "required", "setupMode": "forbidden", "authorities": [MICROSOFT_CA, DEBIAN_CA]},
    "firmware": {"allow": [{"version": "", "blobs": OVMF_BLOBS}]},
    "bootSets": [
        {
            "id": "debian-6.1.0-57",
            "images": [
                {"role": "loader", "authenticode": [SHIM]},
                {"role": "loader", "authenticode": [GRUB]},
                {"role": "kernel", "authenticode": [KERNEL]},
            ],
            "files": [INITRD, KERNEL_FILE, GRUB_CONFIG],
            "mok": [MOK_LIST, MOK_LIST_X, MOK_LIST_TRUSTED],
            "cmdline": {
                "require": ["ima_policy=tcb"],
                "allow": ["console=ttyS0", "loglevel=4", "rootfstype=ramfs", "panic=1", "ima_template=ima-ng"],
                "ignoreKeys": ["BOOT_IMAGE"],
                "forbid": ["ima_appraise=off", "init"],
            },
            "lockdown": "kernel",
        }
    ],
}


def document() -> dict[str, Any]:
    """A fresh copy of the baseline that accepts the case `sb-on-good`."""
    return copy.deepcopy(_GOOD)


def compiled(changed: dict[str, Any] | None = None) -> CompiledBaseline:
    """The baseline `changed`, or the good one."""
    return compile_baseline(load_baseline(json.dumps(document() if changed is None else changed), "baseline"))


@cache
def good() -> CompiledBaseline:
    """The baseline that accepts `sb-on-good`, compiled once."""
    return compiled()
