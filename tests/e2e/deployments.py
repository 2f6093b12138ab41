"""The objects that the tests apply: examples of `manifests/` with the stub and small checkpoints in them."""

from __future__ import annotations

from typing import Any

from e2e.kind.bring_up import Site
from e2e.scenarios.demo import EXAMPLE, ROOT
from e2e.scenarios.manifest import merge, patched

Obj = dict[str, Any]
K3 = ROOT / "manifests/examples/kimi-k3-4x8-h20.yaml"
ADMIN_PORT = 8099
QUICK = {"backoffSeconds": 0, "maxGroupRestarts": 50}


def kimi_k3(site: Site, namespace: str, **spec: Any) -> Obj:
    """Four nodes of eight GPUs: all that there are."""
    return _on_kind(patched(K3), site, namespace, "kimi-k3", spec)


def deepseek(site: Site, namespace: str, name: str = "deepseek-v31", **spec: Any) -> Obj:
    """Two nodes of eight GPUs, so that two revisions fit beside each other."""
    obj = _on_kind(patched(EXAMPLE), site, namespace, "deepseek-v3.1", spec)
    return merge(obj, {"metadata": {"name": name}})


def _on_kind(example: Obj, site: Site, namespace: str, checkpoint: str, spec: Obj) -> Obj:
    patch = {
        "metadata": {"namespace": namespace},
        "spec": {
            "model": {"source": f"pvc://checkpoints/{checkpoint}", "credentialsRef": None},
            "engine": {
                "image": site.images.stub_of("0.33.0"),
                "env": [
                    {"name": "STUB_ITL_MS", "value": "5"},
                    {"name": "STUB_ADMIN_PORT", "value": str(ADMIN_PORT)},
                ],
            },
            "gateway": {"service": {"type": "NodePort"}},
            "restart": QUICK,
            **spec,
        },
    }
    return merge(example, patch)
