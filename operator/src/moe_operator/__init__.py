"""moe-operator: serve very large Mixture-of-Experts models on Kubernetes."""

__version__ = "0.1.0"
