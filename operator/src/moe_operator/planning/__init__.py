"""Layouts, memory per rank and refusals → Plan. Pure."""
