"""Editing text of one format and keeping every other byte."""
