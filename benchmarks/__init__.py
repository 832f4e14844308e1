"""What one machine does, all side by side in one run: `make bench`, or `python -m benchmarks --help`.

    machine    databases, servers and the load that they are put under
    rows       what is measured: one class for each row of the table
    floor, orm the two servers that the product is compared with; views that stand in for the product's
    pgbench    the product's own statements, without Python
    grown      a ledger of millions of entries
    peer       another project's webhooks, in a virtual environment of its own

Everything is made anew, durable as in production, in databases of its own (`sekali_bench_…`).
"""
