"""Makes the shop's data in ``$OSCAR_DATA``: tables, forty products, one country, the search index."""

import random
from decimal import Decimal

import django
from django.core.management import call_command

KINDS = {
    "Kitchen": ("Kettle", "Teapot", "Frying Pan", "Bread Knife", "Mug"),
    "Garden": ("Watering Can", "Spade", "Bird House", "Rake", "Flower Pot"),
    "Office": ("Desk Lamp", "Stapler", "Notebook", "Fountain Pen", "Letter Tray"),
    "Leisure": ("Kite", "Chess Set", "Jigsaw Puzzle", "Skipping Rope", "Picnic Rug"),
}
LOOKS = ("Blue", "Copper", "Large", "Small", "Striped", "Wooden", "Classic", "Green")


def fill() -> None:
    """Products of every kind in two looks each, with prices that differ."""
    from oscar.apps.catalogue.categories import create_from_breadcrumbs
    from oscar.apps.catalogue.models import Product, ProductCategory, ProductClass
    from oscar.apps.partner.models import Partner, StockRecord
    from oscar.core.loading import get_model

    rng = random.Random("agentgym oscar")
    get_model("address", "Country").objects.create(
        iso_3166_1_a2="GB", iso_3166_1_a3="GBR", iso_3166_1_numeric="826", printable_name="United Kingdom",
        name="United Kingdom", is_shipping_country=True,
    )  # fmt: skip
    goods = ProductClass.objects.create(name="Goods", requires_shipping=True, track_stock=False)
    partner = Partner.objects.create(name="Village Shop", code="village")
    for department, names in KINDS.items():
        category = create_from_breadcrumbs(department)
        for name in names:
            for look in rng.sample(LOOKS, 2):
                title = f"{look} {name}"
                product = Product.objects.create(
                    product_class=goods,
                    title=title,
                    upc=f"{1000 + Product.objects.count()}",
                    description=f"<p>A {title.lower()} for every day.</p>",
                )
                ProductCategory.objects.create(product=product, category=category)
                price = Decimal(rng.randint(4, 80)) + rng.choice((Decimal("0.50"), Decimal("0.99"), Decimal("0.25")))
                StockRecord.objects.create(
                    product=product, partner=partner, partner_sku=product.upc, price_currency="GBP", price=price
                )


if __name__ == "__main__":
    django.setup()
    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
    fill()
    call_command("rebuild_index", verbosity=0, interactive=False)
