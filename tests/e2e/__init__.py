"""What is claimed of a real Kubernetes, on one."""
