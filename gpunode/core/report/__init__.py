"""The report about a fleet: its values, what they are made from, and the forms that they are written in."""
