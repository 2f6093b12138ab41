"""IO: API client, observe, execute, probes, work queue, kopf app."""
