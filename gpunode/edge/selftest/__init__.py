"""selftest on this machine: everything is captured, judged by core/selftest, and packed into one redacted archive."""
