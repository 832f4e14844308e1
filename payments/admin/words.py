"""Names of models, fields and choices in the reader's language.

Models say them in English and know nothing of languages; here they become lazy, once, when the admin is loaded. What
`makemigrations` compares stays the same. Their translations are in the catalogs like all others (payments/locale).
"""

from django.apps import apps
from django.utils.translation import gettext_lazy


def translate(app_label: str) -> None:
    """Make the names of an app, its models, their fields and choices follow the reader's language."""
    config = apps.get_app_config(app_label)
    config.verbose_name = gettext_lazy(str(config.verbose_name))
    for model in config.get_models():
        options = model._meta
        options.verbose_name = gettext_lazy(str(options.verbose_name))
        options.verbose_name_plural = gettext_lazy(str(options.verbose_name_plural))
        for field in options.concrete_fields:
            field.verbose_name = gettext_lazy(str(field.verbose_name))
            if field.choices:
                field.choices = [(value, gettext_lazy(str(label))) for value, label in field.flatchoices]


def all_of(app_label: str) -> list[str]:
    """Return the English names, for whoever checks that the catalogs have them."""
    words = {str(apps.get_app_config(app_label).verbose_name)}
    for model in apps.get_app_config(app_label).get_models():
        names = (model._meta.verbose_name, model._meta.verbose_name_plural)
        fields = model._meta.concrete_fields
        words |= {str(name) for name in (*names, *(field.verbose_name for field in fields))}
        words |= {str(label) for field in fields for _value, label in field.flatchoices}
    return sorted(words)
