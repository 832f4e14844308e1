"""A small Django site on dj-stripe, with a virtual environment of its own. Must not import Sekali's code."""
