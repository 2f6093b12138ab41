"""Plan → the argv, environment, ports and probes of each engine."""
