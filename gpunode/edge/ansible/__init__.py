"""Ansible: inventories, runs, shards."""
