"""Synthetic checkpoints: published configs and file layouts with tensors of a few bytes."""

from .build import build
from .catalogue import MODELS

__all__ = ["MODELS", "build"]
