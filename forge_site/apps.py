from django.apps import AppConfig


class ForgeSiteConfig(AppConfig):
    name = "forge_site"
    default_auto_field = "django.db.models.BigAutoField"
