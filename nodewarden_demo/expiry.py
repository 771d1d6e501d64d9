"""What the webhook decides later: the same code over the same manifests, with a clock that is ahead."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from admission.assembly import build_webhook
from admission.settings import WebhookSettings, load_settings
from nodewarden_demo.acts import binding_review, reviewed
from nodewarden_demo.cluster import DemoPod
from nodewarden_demo.stage import Machine, Stage, now
from nodewarden_demo.steps import Outcome


def bind_later(stage: Stage, pod: DemoPod, machine: Machine, *, seconds: int) -> Outcome:
    """The webhook's decision on binding `pod` to the machine's node, `seconds` from now, without new evidence."""
    settings = load_settings(WebhookSettings, stage.directory / "webhook.yaml")
    app = build_webhook(settings, lambda: now() + seconds).app
    review = binding_review(pod, machine.name)

    async def ask() -> dict[str, Any]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://webhook.demo") as client:
            answer: dict[str, Any] = (await client.post("/validate", json=review)).raise_for_status().json()
        return answer

    return reviewed(asyncio.run(ask())["response"])
