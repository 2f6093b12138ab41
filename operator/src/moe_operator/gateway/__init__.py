"""Gateway intent → Envoy configuration, and the agent beside Envoy."""
