"""The environments that come with agentgym; importing this registers their ids and imports none of them."""

from agentgym.registry import register

register(
    "agentgym/Household-v0",
    "agentgym.envs.household.env:HouseholdEnv",
    summary="Keep house by tool calls: an ALFWorld-like text world, generated from a seed",
)
register(
    "agentgym/WebShop-v0",
    "agentgym.envs.webshop.env:WebShopEnv",
    summary="Buy what an instruction asks for in an online shop: WebShop's pages and reward, products from a seed",
)
register(
    "agentgym/ALFWorld-v0",
    "agentgym.envs.adapters.alfworld:ALFWorldEnv",
    summary="The real ALFWorld engine on games from a data folder",
    extra="alfworld",
    requires=("alfworld", "textworld"),
)
