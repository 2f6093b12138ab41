"""Revisions, phases and history. Pure."""
