"""A small Django site on dj-stripe, run by its own virtual environment. Must not import anything of Sekali's."""
