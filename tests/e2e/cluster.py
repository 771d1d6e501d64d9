"""`make cluster`: the control plane, a real node where the machine can, and the product, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from nodewarden_demo.software_tpm import LocalCa, SoftwareTpm
from tests.e2e.control_plane import Options, control_plane
from tests.e2e.playground import ROOT, laid_out, linked, require_room, shell_settings
from tests.e2e.programs import HarnessError
from tests.e2e.real_node import missing_ability, real_node
from tests.e2e.system import running_system

READY = "Stop it here with Ctrl-C."
_HOW = """
A Kubernetes cluster runs on this machine. In another terminal, in this folder:

  . .cluster/env
  kubectl get nodes

{real}
{product}
Logs: .cluster/logs. {ready}
"""
_PRODUCT = """Nodewarden is at work in it. Two ways to see what it does:

  README.md, "A cluster to play with"   enrol a node, run a sensitive pod, tamper with the node, watch the pod go
  docs/audit-to-deny.md                 bring a service that runs already from audit to deny
"""
AUDIT_POLICY = ROOT / "deploy/examples/audit-policy.yaml"
LEAST_NODES = 4
"""Those that the documents name."""


class _Steps:
    """Tells on standard error what is being waited for, and how long each step took."""

    def __init__(self) -> None:
        self._began: float | None = None

    def begin(self, what: str) -> None:
        self.end()
        print(f"{what} ...", end=" ", file=sys.stderr, flush=True)
        self._began = time.monotonic()

    def end(self) -> None:
        if self._began is not None:
            print(f"{time.monotonic() - self._began:.0f} s", file=sys.stderr, flush=True)
            self._began = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=LEAST_NODES, help=f"how many fake nodes, at least {LEAST_NODES}")
    parser.add_argument("--bare", action="store_true", help="without the product")
    options = parser.parse_args()
    if options.nodes < LEAST_NODES:
        parser.error(f"at least {LEAST_NODES} fake nodes: README.md and docs/audit-to-deny.md use them")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _interrupted(stop))
    try:
        _run(options.nodes, stop, bare=options.bare)
    except HarnessError as error:
        sys.exit(f"\nmake cluster: {error}")
    except KeyboardInterrupt:
        sys.exit("\nmake cluster: stopped before it was ready")


def _interrupted(stop: threading.Event) -> None:
    if not stop.is_set():
        stop.set()
        raise KeyboardInterrupt


def _run(nodes: int, stop: threading.Event, *, bare: bool) -> None:
    require_room()
    steps = _Steps()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nw-", dir="/tmp")))
        play = folder / "play"
        play.mkdir(mode=0o700)
        stack.enter_context(linked(play))
        (play / "logs").symlink_to(folder)
        steps.begin(f"etcd, API server, scheduler, controller manager and {nodes} fake nodes")
        audit = (f"--audit-policy-file={AUDIT_POLICY}", f"--audit-log-path={folder}/cp/audit.log")
        plane = stack.enter_context(control_plane(folder / "cp", Options(nodes=nodes, apiserver_flags=audit)))
        missing = missing_ability()
        node = None
        if missing is None:
            steps.begin("a real node: containerd and kubelet")
            node = stack.enter_context(real_node(plane, folder / "n"))
        if not bare:
            steps.begin("Nodewarden: verifier, controller, webhook and broker")
            maker = LocalCa.create(folder / "maker")
            SoftwareTpm.manufacture(folder / "first-tpm", maker, "first")
            system = stack.enter_context(running_system(plane, folder / "s", maker))
            steps.begin("machines with software TPMs")
            stack.enter_context(laid_out(plane, system, node, play))
        else:
            (play / "env").write_text(shell_settings({"KUBECONFIG": str(plane.kubeconfigs["admin"])}))
        steps.end()
        real = f"No node is real here: {missing}."
        if node is not None:
            real = f"Node {node.name} is real: it runs the image {node.app_image}.\nThe others only pretend."
        print(_HOW.format(real=real, product="" if bare else _PRODUCT, ready=READY), flush=True)
        try:
            while not stop.wait(3600):
                pass
        except KeyboardInterrupt:
            print("stopping ...", file=sys.stderr)


if __name__ == "__main__":
    main()
