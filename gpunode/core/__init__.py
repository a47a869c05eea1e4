"""Pure core: values in, values out. No I/O, no clock, no environment (tests/unit/test_layers.py keeps it so)."""
