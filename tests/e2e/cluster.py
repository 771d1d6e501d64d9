"""`make cluster`: the control plane, a real node where the machine can, and the product, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.e2e.control_plane import Options, control_plane
from tests.e2e.programs import HarnessError
from tests.e2e.real_node import missing_ability, real_node
from tests.e2e.system import System, running_system

_HOW = """
A Kubernetes cluster runs on this machine. In another terminal:

  export KUBECONFIG={folder}/cp/admin.kubeconfig
  export PATH={programs}:$PATH
  kubectl get nodes

{real}
{product}
Logs: {folder}/*/*.log. Stop with Ctrl-C.
"""
_PRODUCT = """Nodewarden is at work in it; `kubectl explain sensitiveworkload` says what you can write.

  verifier  {url}
            nodewarden nodes list --url {url} \\
              --ca {ca} --token-file {token}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10, help="how many fake nodes")
    parser.add_argument("--bare", action="store_true", help="without the product")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        _run(options.nodes, stop, bare=options.bare)
    except HarnessError as error:
        sys.exit(f"make cluster: {error}")


def _run(nodes: int, stop: threading.Event, *, bare: bool) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp")))
        print("starting ...", file=sys.stderr)
        plane = stack.enter_context(control_plane(folder / "cp", Options(nodes=nodes)))
        missing = missing_ability()
        if missing is None:
            node = stack.enter_context(real_node(plane, folder / "n"))
            real = f"Node {node.name} is real: it runs the image {node.app_image}.\nThe others only pretend."
        else:
            real = f"No node is real here: {missing}."
        product = ""
        if not bare:
            maker = LocalCa.create(folder / "maker")
            SoftwareTpm.manufacture(folder / "first-tpm", maker, "first")
            system: System = stack.enter_context(running_system(plane, folder / "s", maker))
            verifier = system.verifier
            product = _PRODUCT.format(url=verifier.url, ca=verifier.ca, token=verifier.token_file("operator"))
        programs = Path(sys.executable).parent
        print(_HOW.format(folder=folder, programs=programs, real=real, product=product), flush=True)
        stop.wait()
        print("stopping ...", file=sys.stderr)


if __name__ == "__main__":
    main()
