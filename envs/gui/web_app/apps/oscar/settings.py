"""Django's settings of the shop: django-oscar as it comes, with SQLite and a Whoosh index in ``$OSCAR_DATA``."""

import os
from pathlib import Path

from oscar.defaults import *  # noqa: F403


class NoMigrations:
    """Leaves the history of every app's tables out, so that ``migrate`` makes them as they are now.

    Django takes it for a dictionary whose values are all ``None``.
    """

    def __contains__(self, label: object) -> bool:
        return True

    def __getitem__(self, label: str) -> None:
        return None


DATA = Path(os.environ["OSCAR_DATA"])
SECRET_KEY = "a shop on one machine, with nothing in it that is worth keeping"  # the same in every run
DEBUG = False
ALLOWED_HOSTS = ["oscar.localhost", "127.0.0.1"]
ROOT_URLCONF = "urls"
TIME_ZONE, USE_TZ = "UTC", True
LANGUAGE_CODE, LANGUAGES = "en-gb", [("en-gb", "British English")]
STATIC_URL, MEDIA_URL = "/static/", "/media/"
MEDIA_ROOT = DATA / "media"
SITE_ID = 1
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
MIGRATION_MODULES = NoMigrations()
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
OSCAR_SHOP_NAME = "Village Shop"
OSCAR_ALLOW_ANON_CHECKOUT = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA / "oscar.sqlite", "ATOMIC_REQUESTS": True}
}
HAYSTACK_CONNECTIONS = {
    # haystack's simple engine finds nothing for a catalogue's pages
    "default": {"ENGINE": "haystack.backends.whoosh_backend.WhooshEngine", "PATH": str(DATA / "whoosh")}
}
AUTHENTICATION_BACKENDS = ["oscar.apps.customer.auth_backends.EmailBackend"]
INSTALLED_APPS = [
    *(f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")),
    *("django.contrib.sites", "django.contrib.flatpages"),
    "oscar.config.Shop",
    *(
        f"oscar.apps.{name}.apps.{config}Config"
        for name, config in (
            *(("analytics", "Analytics"), ("checkout", "Checkout"), ("address", "Address"), ("shipping", "Shipping")),
            *(
                ("catalogue", "Catalogue"),
                ("catalogue.reviews", "CatalogueReviews"),
                ("communication", "Communication"),
            ),
            *(("partner", "Partner"), ("basket", "Basket"), ("payment", "Payment"), ("offer", "Offer")),
            *(("order", "Order"), ("customer", "Customer"), ("search", "Search"), ("voucher", "Voucher")),
            *(("wishlists", "Wishlists"), ("dashboard", "Dashboard"), ("dashboard.reports", "ReportsDashboard")),
            *(("dashboard.users", "UsersDashboard"), ("dashboard.orders", "OrdersDashboard")),
            *(("dashboard.catalogue", "CatalogueDashboard"), ("dashboard.offers", "OffersDashboard")),
            *(("dashboard.partners", "PartnersDashboard"), ("dashboard.pages", "PagesDashboard")),
            *(("dashboard.ranges", "RangesDashboard"), ("dashboard.reviews", "ReviewsDashboard")),
            *(("dashboard.vouchers", "VouchersDashboard"), ("dashboard.communications", "CommunicationsDashboard")),
            ("dashboard.shipping", "ShippingDashboard"),
        )
    ),
    *("widget_tweaks", "haystack", "treebeard", "sorl.thumbnail", "django_tables2"),
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.common.CommonMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).parent / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                *(
                    f"django.template.context_processors.{name}"
                    for name in ("debug", "request", "i18n", "media", "static")
                ),
                *("django.contrib.auth.context_processors.auth", "django.contrib.messages.context_processors.messages"),
                *(
                    "oscar.apps.search.context_processors.search_form",
                    "oscar.apps.checkout.context_processors.checkout",
                ),
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ]
        },
    }
]
