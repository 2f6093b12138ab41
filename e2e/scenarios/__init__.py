"""Stories that a cluster is told and has to make true, whatever the cluster is made of.

A scenario drives a :class:`~e2e.scenarios.backend.Backend`: it sees a Kubernetes API and a gateway's URL,
never what is behind them.
"""
