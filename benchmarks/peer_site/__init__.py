"""A small Django site on dj-stripe, run by its own virtual environment: it must not import anything of Sekali's."""
