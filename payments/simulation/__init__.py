"""A gateway to try the product with: makes payments up, tells and signs them, retries, checks every answer.

    stories   what happened, in which order it is delivered, and what the ledger must show in the end
    dialects  how each gateway tells and proves it
    wire      HTTP on one connection
    gateway   a run: deliveries, retries, the journal of first answers, the report

It stands outside, as a gateway does: it knows the product by HTTP alone and writes nothing.
"""
