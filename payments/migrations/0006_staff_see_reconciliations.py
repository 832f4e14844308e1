"""The groups of staff may see the tables that came after them."""

from importlib import import_module

from django.db import migrations

make_groups = import_module("payments.migrations.0003_staff_groups").make_groups


class Migration(migrations.Migration):
    dependencies = [("payments", "0005_reconciliation_runs")]

    operations = [migrations.RunPython(make_groups, migrations.RunPython.noop)]
