"""Command lines: moe-operator and kubectl-moe."""
