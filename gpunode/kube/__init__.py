"""Kubernetes: all that is about the objects of a cluster.  core is pure, edge asks a cluster, cli has the verbs."""
