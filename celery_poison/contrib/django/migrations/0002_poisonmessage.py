"""The two permissions of the admin's pages; no table."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("celery_poison", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="PoisonMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
            ],
            options={
                "verbose_name": "poison message",
                "permissions": (("act_poisonmessage", "Can release, fail and edit poison messages"),),
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
            },
        ),
    ]
