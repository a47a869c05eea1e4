"""Bundles: made, checked, served, brought to where they are needed."""
