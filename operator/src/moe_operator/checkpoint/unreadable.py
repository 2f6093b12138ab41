"""What is raised when a model's own files cannot be trusted."""

from __future__ import annotations


class UnreadableConfig(ValueError):
    """config.json or the index lacks a fact nobody can guess, states an absurd one, or they disagree."""
