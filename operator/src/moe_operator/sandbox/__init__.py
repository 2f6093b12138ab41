"""The operator on one machine without Kubernetes: in-memory API, controllers, kubelets."""
