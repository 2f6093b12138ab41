"""A real Kubernetes cluster on one machine, from nothing: ``python -m e2e.cluster up``.

kind's nodes run in Docker. Where an image registry can be reached their image is pulled; where none can,
the same image is built from Go modules and Debian packages and cached by the hash of its inputs.

Pure rooms decide (topology, source, recovery, daemon, leftovers, wiring, kind_config, go_binaries,
inputs, disk, prerequisites); the others do. ``lifecycle`` puts them in order.
"""
