"""A small Django site on dj-stripe, run by a virtual environment of its own. Must not import Sekali's code."""
