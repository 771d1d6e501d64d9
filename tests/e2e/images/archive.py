"""Built images into a node's containerd, as the OCI archive that `ctr images import` reads."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from tests.e2e.images.build import Image
from tests.e2e.programs import HarnessError, cache, find_program
from tests.e2e.real_node import RealNode

_MEDIA = "application/vnd.oci.image."


def import_images(node: RealNode, images: Iterable[Image], reference: str) -> None:
    """The node has the images, named `reference` with the part in place of `{}`. Raises HarnessError."""
    command = [str(find_program("ctr")), "-a", node.containerd, "-n", "k8s.io", "images", "import", "-"]
    path = {"PATH": f"{cache()}:/usr/bin:/bin:/usr/sbin:/sbin"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=path
    ) as ctr:
        assert ctr.stdin is not None
        assert ctr.stderr is not None
        with suppress(BrokenPipeError):
            write_archive(ctr.stdin, images, reference)
            ctr.stdin.close()
        told = ctr.stderr.read().decode(errors="replace").strip()
    if ctr.returncode != 0:
        raise HarnessError(f"ctr images import: {told}")


def write_archive(out: IO[bytes], images: Iterable[Image], reference: str) -> None:
    """One archive of all the images; what they share is in it once."""
    written: set[str] = set()
    with tarfile.open(fileobj=out, mode="w|") as archive:

        def add(name: str, content: IO[bytes], size: int) -> None:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = size, 0o644
            if name not in written:
                written.add(name)
                archive.addfile(entry, content)

        def blob(fields: object, media: str) -> dict[str, Any]:
            content = json.dumps(fields).encode()
            digest = hashlib.sha256(content).hexdigest()
            add(f"blobs/sha256/{digest}", io.BytesIO(content), len(content))
            return {"mediaType": _MEDIA + media, "digest": f"sha256:{digest}", "size": len(content)}

        listed = []
        for image in images:
            layers = []
            for layer in image.layers:
                with layer.path.open("rb") as content:
                    add(f"blobs/sha256/{layer.sha256}", content, layer.size)
                digest = f"sha256:{layer.sha256}"
                layers.append({"mediaType": _MEDIA + "layer.v1.tar", "digest": digest, "size": layer.size})
            rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
            about = {"architecture": "amd64", "os": "linux", "config": image.config, "rootfs": rootfs}
            manifest = {
                "schemaVersion": 2,
                "mediaType": _MEDIA + "manifest.v1+json",
                "config": blob(about, "config.v1+json"),
                "layers": layers,
            }
            named = {"io.containerd.image.name": reference.format(image.part)}
            listed.append({**blob(manifest, "manifest.v1+json"), "annotations": named})
        index = json.dumps({"schemaVersion": 2, "manifests": listed}).encode()
        for file, text in (("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index)):
            add(file, io.BytesIO(text), len(text))
