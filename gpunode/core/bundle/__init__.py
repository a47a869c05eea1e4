"""Bundles: all that nodes without a network need, as repositories of their own.  What is pure of it."""
