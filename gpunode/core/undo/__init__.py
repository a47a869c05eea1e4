"""Undo: from a node's journal and its present state to what removes gpunode's changes."""
