"""Snapshot → Decision: the steps of ``decide`` and what each of them concludes from."""
