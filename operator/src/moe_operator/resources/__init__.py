"""Plan + assignment → Kubernetes objects as dicts; one module per object kind. Pure builders."""
