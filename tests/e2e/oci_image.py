"""OCI image archives without a container engine, for `ctr images import`."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MEDIA = "application/vnd.oci.image."


def _archive(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def write_image(path: Path, reference: str, entrypoint: list[str], files: Mapping[str, Path]) -> str:
    """Writes an image of one layer that holds `files`, mode 0755; returns its manifest's digest `sha256:...`."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": _MEDIA + media, "digest": f"sha256:{digest}", "size": len(content)}

    layer = blob(_archive({name: source.read_bytes() for name, source in files.items()}), "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": _MEDIA + "manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer],
    }
    listed = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    digest = str(listed["digest"])
    listed["annotations"] = {"io.containerd.image.name": reference}
    index = json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode()
    layout = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index, **blobs}
    path.write_bytes(_archive(layout))
    return digest
