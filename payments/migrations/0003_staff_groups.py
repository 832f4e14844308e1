"""Two groups for staff: "payments viewers" see everything, "payments operators" may also act.

What they may do is added to what the groups may already; going back removes the groups.
"""

from typing import Any, Final

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations

VIEWERS: Final = "payments viewers"
OPERATORS: Final = "payments operators"
ACTIONS: Final = {
    "claim": ("retry_claim", "Can tell kept events again"),
    "event": ("reveal_event", "Can see personal data in bodies, and download them"),
    "finding": ("close_finding", "Can close findings"),
    "outboxmessage": ("requeue_outboxmessage", "Can give dead messages their tries again"),
    "payment": ("allocate_payment", "Can allocate payments that wait for an owner"),
}


def make_groups(apps: Apps, schema_editor: Any) -> None:
    # Permissions are made after a migrate, but these groups need them now.
    config: Any = apps.get_app_config("payments")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    permissions = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="payments")
    viewing = permissions.filter(codename__startswith="view_")
    acting = permissions.filter(codename__in=[codename for codename, _name in ACTIONS.values()])
    for name, allowed in ((VIEWERS, viewing), (OPERATORS, viewing | acting)):
        group, _ = apps.get_model("auth", "Group").objects.get_or_create(name=name)
        group.permissions.add(*allowed)


def remove_groups(apps: Apps, schema_editor: Any) -> None:
    apps.get_model("auth", "Group").objects.filter(name__in=[VIEWERS, OPERATORS]).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("payments", "0002_guards"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        *(
            migrations.AlterModelOptions(name=model, options={"permissions": [permission]})
            for model, permission in ACTIONS.items()
        ),
        migrations.RunPython(make_groups, remove_groups),
    ]
