"""A table that counts tries to log in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("payments", "0009_verification_passes")]

    operations = [
        migrations.CreateModel(
            name="LoginBrake",
            fields=[
                ("who", models.UUIDField(primary_key=True, serialize=False)),
                ("tries", models.IntegerField()),
                ("began_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["began_at"], name="payments_loginbrake_by_time")],
            },
        )
    ]
