"""Events as a kubelet records them: what ``kubectl describe`` shows; repeats are counted, not repeated."""

from __future__ import annotations

from moe_operator.api.moments import moment
from moe_operator.api.names import digest
from moe_operator.runtime.kube import EVENT, ApiError, Kube, Obj


class Recorder:
    """Writes events about pods."""

    def __init__(self, kube: Kube, component: str) -> None:
        self._kube = kube
        self._component = component

    async def record(self, pod: Obj, kind: str, reason: str, message: str, now: float) -> None:
        """Say it once, or count it; a namespace that is going away takes no more events."""
        meta = pod["metadata"]
        event = self._event(pod, kind, reason, message, now)
        try:
            known = await self._kube.get(EVENT, meta["namespace"], event["metadata"]["name"])
            event["firstTimestamp"], event["count"] = known["firstTimestamp"], known["count"] + 1
        except ApiError as error:
            if not error.not_found:
                raise
        try:
            await self._kube.apply(event, manager=self._component)
        except ApiError as error:
            if error.status not in {403, 404}:
                raise

    def _event(self, pod: Obj, kind: str, reason: str, message: str, now: float) -> Obj:
        meta = pod["metadata"]
        same = digest(f"{meta['uid']}/{reason}/{message}", length=16)
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": f"{meta['name'][:200]}.{same}", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod",
                "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
            },
            "type": kind, "reason": reason, "message": message[:1024],
            "count": 1, "firstTimestamp": moment(now), "lastTimestamp": moment(now),
            "source": {"component": self._component, "host": pod["spec"].get("nodeName", "")},
        }  # fmt: skip
