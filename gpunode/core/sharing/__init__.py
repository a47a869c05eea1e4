"""How several containers share one GPU: what MIG can cut, whether a request fits, and which ways exclude each other."""
