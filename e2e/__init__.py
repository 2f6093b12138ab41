"""Engine stub, synthetic checkpoints and the scenarios that run on them; nothing here ships in the product."""
