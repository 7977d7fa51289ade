from django.apps import AppConfig


class GraphsConfig(AppConfig):
    name = "graphs"
    default_auto_field = "django.db.models.BigAutoField"
