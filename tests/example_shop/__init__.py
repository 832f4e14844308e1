"""A shop that is paid through payments: what an application of one's own looks like. Its tests: test_handlers.py."""
