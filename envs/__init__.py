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
register(
    "agentgym/Code-v0",
    "agentgym.envs.code.env:CodeEnv",
    summary="Write a function in a sandbox and submit it to hidden tests: generated from a seed, or HumanEval",
)
register(
    "agentgym/CodeRepair-v0",
    "agentgym.envs.code.code_repair:CodeRepairEnv",
    summary="Repair a module in a sandbox: generated bugs, or Exercism exercises; hidden tests decide",
)
register(
    "agentgym/SWE-v0",
    "agentgym.envs.code.swe:SWEEnv",
    summary="Resolve an issue in a repository with shell and files: generated, or Harbor tasks; gives a patch",
)
register(
    "agentgym/PythonMath-v0",
    "agentgym.envs.code.math_env:PythonMathEnv",
    summary="Solve a problem with a Python interpreter and submit one whole number: generated from a seed",
)
register(
    "agentgym/KuhnPoker-v0",
    "agentgym.envs.games.kuhn:KuhnPokerEnv",
    summary="Kuhn poker against an equilibrium, a random player, or by self-play: chips are the reward",
)
register(
    "agentgym/TicTacToe-v0",
    "agentgym.envs.games.tictactoe:TicTacToeEnv",
    summary="Tic-tac-toe against a perfect or a random player, or by self-play",
)
