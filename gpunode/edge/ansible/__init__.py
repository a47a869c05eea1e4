"""Ansible: inventories, runs."""
