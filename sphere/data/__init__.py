"""Data that were recorded before: sets of transitions to learn from offline, and how such sets are made."""
