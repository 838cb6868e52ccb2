"""The shop as a web application: the only module of the environments that imports FastAPI.

One server for all episodes of a process. Each has a session, which a cookie carries; :meth:`ShopServer.open` gives the
address that sets it.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agentgym.envs.gui.shop.listing import Listing, categories, num_pages
from agentgym.envs.gui.shop.store import Line, ShopStore
from agentgym.envs.gui.site import Upstream
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Product

_FOLDER = Path(__file__).parent / "templates"
_COOKIE = "session"
_SEE_OTHER = 303


class ShopServer:
    """The application on a port of this machine, in a thread of its own; get the process's by :func:`shop_server`."""

    def __init__(self) -> None:
        self.store = ShopStore()
        self.failures: dict[str, str] = {}
        """By session: what the application itself failed with, which is no agent's doing."""
        self.catalogues: dict[str, Catalogue] = {}
        """What each open session's shop sells."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)  # from now on browsers wait rather than fail
        self.address = Upstream(*listening.getsockname())
        config = uvicorn.Config(shop_app(self), log_level="critical", access_log=False, lifespan="off", loop="asyncio")
        run = uvicorn.Server(config).run
        Thread(target=run, args=([listening],), name="shop", daemon=True).start()

    def open(self, catalogue: Catalogue) -> str:
        """Begin a session with an empty cart; its name, which nobody can guess."""
        session = secrets.token_urlsafe(16)
        self.catalogues[session] = catalogue
        return session

    def close(self, session: str) -> None:
        """End a session; nothing of it is left."""
        self.catalogues.pop(session, None)
        self.failures.pop(session, None)
        self.store.forget(session)


@cache
def _server_of(pid: int) -> ShopServer:
    return ShopServer()


_lock = Lock()


def shop_server() -> ShopServer:
    """This process's server, started at the first call; a forked child gets one of its own."""
    with _lock:
        return _server_of(os.getpid())


def entrance(session: str) -> str:
    """The path that makes a browser part of a session."""
    return f"/enter?session={session}"


def shop_app(shop: ShopServer) -> FastAPI:
    """The application."""
    app = FastAPI(title="shop", openapi_url=None)
    _add_pages(app, shop)
    _add_cart(app, shop)
    _add_problems(app, shop)
    return app


def _add_pages(app: FastAPI, shop: ShopServer) -> None:
    """What a customer looks at."""

    @app.get("/enter")
    async def enter(session: str) -> Response:
        answer = RedirectResponse("/", _SEE_OTHER)
        answer.set_cookie(_COOKIE, session, httponly=True, samesite="lax")
        return answer

    @app.get("/")
    async def home(request: Request) -> Response:
        return _page(shop, request, "home")

    @app.get("/search")
    async def search(request: Request) -> Response:
        catalogue = _catalogue(shop, request)
        listing = Listing.of(request.query_params)
        found = listing.places(catalogue)
        last, size = num_pages(catalogue, len(found)), catalogue.results_per_page
        listing = listing.at_page(min(listing.page, last))
        shown = [catalogue.products[place] for place in found[(listing.page - 1) * size : listing.page * size]]
        return _page(shop, request, "search", listing=listing, num_found=len(found), last=last, products=shown)

    @app.get("/product/{asin}")
    async def product(request: Request, asin: str) -> Response:
        return _page(shop, request, "product", product=_product(shop, request, asin), chosen={}, problem="")

    @app.get("/style.css")
    async def style() -> Response:
        return Response(_style(), media_type="text/css")


def _add_cart(app: FastAPI, shop: ShopServer) -> None:
    """From the cart to the order."""

    @app.post("/product/{asin}")
    async def add(request: Request, asin: str) -> Response:
        found = _product(shop, request, asin)
        form = await _form(request)
        chosen = {name: form.get(f"option {name}", "") for name in found.options}
        missing = [name for name, value in chosen.items() if value not in found.options[name]]
        if missing:
            problem = f"Please choose: {', '.join(missing)}."
            return _page(shop, request, "product", product=found, chosen=chosen, problem=problem)
        shop.store.add(_session(shop, request), found.asin, chosen)
        return RedirectResponse("/cart", _SEE_OTHER)

    @app.get("/cart")
    async def cart(request: Request) -> Response:
        return _page(shop, request, "cart", **_bill(shop, request))

    @app.post("/cart/remove")
    async def remove(request: Request) -> Response:
        line = (await _form(request)).get("line", "")
        if line.isdecimal():
            shop.store.remove(_session(shop, request), int(line))
        return RedirectResponse("/cart", _SEE_OTHER)

    @app.get("/checkout")
    async def checkout(request: Request) -> Response:
        bill = _bill(shop, request)
        return _page(shop, request, "checkout", **bill) if bill["lines"] else RedirectResponse("/cart", _SEE_OTHER)

    @app.post("/checkout")
    async def order(request: Request) -> Response:
        session = _session(shop, request)
        if shop.store.cart(session) and not shop.store.order(session):
            shop.store.place_order(session)
        return RedirectResponse("/thanks", _SEE_OTHER)

    @app.get("/thanks")
    async def thanks(request: Request) -> Response:
        return _page(shop, request, "thanks")


def _add_problems(app: FastAPI, shop: ShopServer) -> None:
    """What a customer is told when something cannot be done, and what the environment is told when it should."""

    @app.exception_handler(HTTPException)
    async def told(request: Request, error: HTTPException) -> Response:
        body = _templates().get_template("problem.html.jinja").render(problem=error.detail)
        return HTMLResponse(body, error.status_code)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        shop.failures[request.cookies.get(_COOKIE, "")] = f"{request.url.path}: {type(error).__name__}: {error}"
        return HTMLResponse("<h1>Internal server error</h1>", 500)


def _session(shop: ShopServer, request: Request) -> str:
    session = request.cookies.get(_COOKIE, "")
    if session not in shop.catalogues:
        raise HTTPException(403, "You have no session in this shop.")
    return session


def _catalogue(shop: ShopServer, request: Request) -> Catalogue:
    return shop.catalogues[_session(shop, request)]


def _product(shop: ShopServer, request: Request, asin: str) -> Product:
    catalogue = _catalogue(shop, request)
    try:
        return catalogue.products[catalogue.place_of(asin)]
    except KeyError:
        raise HTTPException(404, f"The shop sells no product {asin!r}.") from None


def _bill(shop: ShopServer, request: Request) -> dict[str, Any]:
    lines: list[tuple[Line, Product]] = [
        (line, _product(shop, request, line.asin)) for line in shop.store.cart(_session(shop, request))
    ]
    return {"lines": lines, "total": sum(product.price for _, product in lines)}


async def _form(request: Request) -> Mapping[str, str]:
    return dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))


def _page(shop: ShopServer, request: Request, name: str, **values: Any) -> Response:
    catalogue, session = _catalogue(shop, request), _session(shop, request)
    values = {"listing": Listing(), **values, "categories": categories(catalogue)}
    body = _templates().get_template(f"{name}.html.jinja").render(**values, num_in_cart=len(shop.store.cart(session)))
    return HTMLResponse(body)


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(_FOLDER)
    return Environment(autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _style() -> str:
    return (_FOLDER / "style.css").read_text(encoding="utf-8")
