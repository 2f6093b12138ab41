"""Engine stub, synthetic checkpoints and the scenarios that run on them; no part of the product."""
