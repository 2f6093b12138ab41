"""moestage: resolve, pull and verify the bytes of a model on a node."""
