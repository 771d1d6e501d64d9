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
from tests.e2e.control_plane import ControlPlane, Options, control_plane
from tests.e2e.machines import booted_machine
from tests.e2e.playground import lay_out
from tests.e2e.programs import HarnessError
from tests.e2e.real_node import RealNode, missing_ability, real_node
from tests.e2e.system import running_system

_HOW = """
A Kubernetes cluster runs on this machine. In another terminal:

  export KUBECONFIG={folder}/cp/admin.kubeconfig
  export PATH={programs}:$PATH
  kubectl get nodes

{real}
{product}
Logs: {folder}/*/*.log. Stop with Ctrl-C.
"""
_PRODUCT = """Nodewarden is at work in it. From this repository: enrol the machine behind {node}, attest, see the label,
run a sensitive pod, tamper, and watch it go.

{lines}"""


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
        node = stack.enter_context(real_node(plane, folder / "n")) if missing is None else None
        real = f"No node is real here: {missing}."
        if node is not None:
            real = f"Node {node.name} is real: it runs the image {node.app_image}.\nThe others only pretend."
        product = "" if bare else _start_product(stack, plane, folder, node)
        programs = Path(sys.executable).parent
        print(_HOW.format(folder=folder, programs=programs, real=real, product=product), flush=True)
        stop.wait()
        print("stopping ...", file=sys.stderr)


def _start_product(stack: ExitStack, plane: ControlPlane, folder: Path, node: RealNode | None) -> str:
    maker = LocalCa.create(folder / "maker")
    SoftwareTpm.manufacture(folder / "first-tpm", maker, "first")
    system = stack.enter_context(running_system(plane, folder / "s", maker))
    name = "fake-0" if node is None else node.name
    spec = None if node is None else {"containers": [{"name": "main", "image": node.app_image}]}
    machine = stack.enter_context(booted_machine(plane, system.verifier, maker, folder / name, name, pod_spec=spec))
    return _PRODUCT.format(node=name, lines=lay_out(system, machine, node, folder, sys.executable))


if __name__ == "__main__":
    main()
