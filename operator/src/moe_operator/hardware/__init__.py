"""GPU catalogue, nodes → GpuNode, NVLink domains."""
