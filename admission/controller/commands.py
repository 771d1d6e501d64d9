"""Commands of the controller, mounted by `admission.commands`."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import structlog
import typer

from admission.clock import system_clock
from admission.controller.health import serving_health
from admission.controller.process import Controller
from admission.controller.settings import ControllerSettings
from admission.controller.uninstall import uninstall as take_away
from admission.events import configure_logging
from admission.kube import KubeClient
from admission.metrics_server import serving_metrics
from admission.settings import read_settings


def controller(config: Annotated[Path, typer.Option("--config", help="Settings file (YAML).")]) -> None:
    """Follow the verifier and keep labels, taints, gates and pods to what it says, until SIGTERM."""
    lines = configure_logging()
    settings = read_settings(ControllerSettings, config)
    running = Controller(settings, system_clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    with ExitStack() as stack:
        if settings.health is not None:
            stack.enter_context(serving_health(running.healthy, settings.health))
        if settings.metrics is not None:
            port = stack.enter_context(serving_metrics(running.figures(lambda: lines.lost), settings.metrics))
            structlog.get_logger().info("metrics_ready", host=settings.metrics.host, port=port)
        running.run()


def uninstall(
    kubeconfig: Annotated[Path, typer.Option("--kubeconfig", help="A cluster administrator's kubeconfig.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")] = False,
) -> None:
    """Remove guards, webhooks, gates, node labels, taints and finalizers, so that the cluster runs without us."""
    removed = []
    for one in take_away(KubeClient.from_kubeconfig(kubeconfig)):
        removed.append({"what": one.what, "where": one.where})
        if not as_json:
            typer.echo(f"removed {one.what} {one.where}")
    if as_json:
        typer.echo(json.dumps({"removed": removed}))
