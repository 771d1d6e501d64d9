"""What a cluster's network gives pods: Services at their addresses, and their names. kube-proxy's part and CoreDNS's.

The addresses are local to this machine for as long as the block runs, and every connection is passed on in user space.
Pods reach them through the real node's network; so does the API server when it calls a webhook.
"""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network, ip_network
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.control_plane import ControlPlane
from tests.e2e.programs import HarnessError
from tests.e2e.real_node import CLUSTER_DOMAIN

_CHUNK = 65536
_CONNECT_SECONDS = 5
_IN, _A = 1, 1
Address = tuple[str, int]


def unused_ranges() -> tuple[str, str]:
    """Addresses for Services and for pods, of the block that is kept for tests of networks (RFC 2544)."""
    number = random.randrange(1, 255)  # noqa: S311 - two runs on one machine should not meet, that is all
    return f"198.18.{number}.0/24", f"198.19.{number}.0/24"


def name_server(service_range: str) -> str:
    """Where pods ask for names."""
    return str(ip_network(service_range)[10])


class ServiceNetwork:
    """Services of `plane`, served once `serve` has seen them."""

    def __init__(self, plane: ControlPlane, addresses: IPv4Network) -> None:
        self._plane, self._addresses = plane, addresses
        self._sockets: list[socket.socket] = []
        self._names: dict[str, str] = {}
        self._served: set[Address] = set()
        self._ended = threading.Event()

    def start(self) -> None:
        _ip("route", "replace", "local", str(self._addresses), "dev", "lo")
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((name_server(str(self._addresses)), 53))
        self._sockets.append(names)
        threading.Thread(target=self._answer_names, args=(names,), daemon=True).start()
        server = urlsplit(self._plane.server)
        self.listen(str(self._addresses[1]), 443, lambda: (str(server.hostname), server.port or 443))
        self._names[f"kubernetes.default.svc.{CLUSTER_DOMAIN}"] = str(self._addresses[1])

    def stop(self) -> None:
        self._ended.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        _ip("route", "del", "local", str(self._addresses), "dev", "lo")

    def serve(self) -> None:
        """Every Service that is there now has its address and its name."""
        for service in self._plane.admin.must_get("/api/v1/services")["items"]:
            metadata, spec = service["metadata"], service["spec"]
            address, name = spec.get("clusterIP", ""), f"{metadata['name']}.{metadata['namespace']}.svc"
            if not address or address == "None" or name == "kubernetes.default.svc":
                continue
            self._names[f"{name}.{CLUSTER_DOMAIN}"] = address
            for port in spec["ports"]:
                if (address, port["port"]) not in self._served:
                    self._served.add((address, port["port"]))
                    self.listen(address, port["port"], self._endpoint_of(metadata, port.get("name", "")))

    def address_of(self, number: int) -> str:
        """An address of the range, which the test must not use twice; Services get theirs from its upper part."""
        return str(self._addresses[number])

    def _endpoint_of(self, service: dict[str, Any], port_name: str) -> Callable[[], Address | None]:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{service['namespace']}/endpointslices"
        selector = {"labelSelector": f"kubernetes.io/service-name={service['name']}"}

        def endpoint() -> Address | None:
            slices = self._plane.admin.request("GET", path, parameters=selector).body["items"]
            found = [
                (address, port["port"])
                for each in slices
                for port in each.get("ports") or []
                if port.get("name", "") == port_name
                for target in each["endpoints"]
                if target["conditions"].get("ready")
                for address in target["addresses"]
            ]
            return random.choice(found) if found else None  # noqa: S311 - any of them will do

        return endpoint

    def listen(self, address: str, port: int, target: Callable[[], Address | None]) -> None:
        """Connections to the address go to `target()`, or are closed where that is nowhere."""
        listener = socket.create_server((address, port))
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()

    def _accept(self, listener: socket.socket, target: Callable[[], Address | None]) -> None:
        while not self._ended.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near, target), daemon=True).start()

    def _connect(self, near: socket.socket, target: Callable[[], Address | None]) -> None:
        where = target()
        far = None
        with suppress(OSError):
            far = None if where is None else socket.create_connection(where, _CONNECT_SECONDS)
        if far is None:
            near.close()
            return
        far.settimeout(None)
        self._sockets += [near, far]
        threading.Thread(target=_pass_on, args=(far, near), daemon=True).start()
        _pass_on(near, far)

    def _answer_names(self, names: socket.socket) -> None:
        while not self._ended.is_set():
            with suppress(OSError, ValueError, IndexError, struct.error):
                query, asker = names.recvfrom(512)
                names.sendto(dns_answer(query, self._names), asker)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while received := source.recv(_CHUNK):
            sink.sendall(received)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def dns_answer(query: bytes, names: dict[str, str]) -> bytes:
    """The answer of RFC 1035 to a query of one question: an address, none of that type, or no such name."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii").lower())
        at += 1 + query[at]
    kind, group = struct.unpack_from("!HH", query, at + 1)
    address = names.get(".".join(labels))
    records = b""
    if address is not None and (kind, group) == (_A, _IN):
        records = struct.pack("!HHHIH", 0xC00C, _A, _IN, 5, 4) + socket.inet_aton(address)
    # A response, authoritative, recursion wanted and had; NXDOMAIN where the name is not known.
    flags = 0x8580 | (3 if address is None else 0)
    header = query[:2] + struct.pack("!HHHHH", flags, 1, 1 if records else 0, 0, 0)
    return header + query[12 : at + 5] + records


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def service_network(plane: ControlPlane, service_range: str) -> Iterator[ServiceNetwork]:
    """The network, from here on. Raises HarnessError."""
    network = ServiceNetwork(plane, IPv4Network(service_range))
    network.start()
    try:
        yield network
    finally:
        network.stop()
