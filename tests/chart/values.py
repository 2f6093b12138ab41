"""Values that between them switch every template and every option of the chart on and off."""

from __future__ import annotations

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "smallest": {
        "replicas": 1,
        "crds": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
        "rbac": {"aggregateToDefaultRoles": False},
    },
    "identity of others": {
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "given"},
        "podDisruptionBudget": {"enabled": False},
    },
    "cluster with everything": {
        "nameOverride": "serving",
        "commonLabels": {"team": "inference"},
        "image": {
            "registry": "registry.example:5000",
            "repository": "ai/moe",
            "tag": "1.2",
            "digest": DIGEST,
        },
        "envoyImage": {"registry": "registry.example:5000", "repository": "ai/envoy"},
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"annotations": {"example.org/role": "moe"}},
        "resources": {"limits": {"memory": "1Gi", "cpu": 2}, "requests": {"cpu": "100m"}},
        "podLabels": {"mesh": "off"},
        "podAnnotations": {"example.org/note": "x"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "crds": {"keep": False},
        "logLevel": "debug",
        "workers": 8,
        "metrics": {
            "service": {"annotations": {"example.org/scrape": "yes"}, "port": 9090},
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "1m30s"},
        },
        "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
        "nodeStore": {"enabled": True, "namespace": "moe-nodes", "nodeSelector": {"disk": "nvme"}},
        "policy": {
            "cacheClasses": {"raid": {"root": "/mnt/raid/moe", "reserveBytes": 107_374_182_400}},
            "allowedImagePrefixes": ["registry.example:5000/"],
            "images": {"pullSecrets": ["mirror"]},
            "networkPolicies": {
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
                "externalGatewaysFrom": [{"namespaceSelector": {}}],
            },
            "presets": {
                "rack": {
                    "product": "NVIDIA-GB200",
                    "gpusPerNode": 4,
                    "domain": {"type": "Label", "key": "nvidia.com/gpu.clique"},
                }
            },
            "gpuProducts": {"NVIDIA-B300": {"memoryMib": 294_912}},
        },
    },
    "two namespaces": {"watchNamespaces": ["team-a", "team-b"], "networkPolicy": {"enabled": True}},
}
