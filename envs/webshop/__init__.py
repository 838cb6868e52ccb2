"""A WebShop-like online shop: search, look, choose options, buy."""
