"""The images of this repository, built through Docker: operator, Envoy and the engine stub."""
