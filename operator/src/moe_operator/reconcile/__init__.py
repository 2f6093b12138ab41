"""Snapshot → Decision: the pure chain accept → plan → place → stage → roll → serve → route → report."""
