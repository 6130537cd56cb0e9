from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            "Order",
            [("id", models.BigAutoField(primary_key=True)), ("item", models.TextField())],
        ),
        migrations.CreateModel(
            "Payment",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("order_number", models.BigIntegerField(db_index=True)),
                ("order_was_there", models.BooleanField()),
            ],
        ),
    )
