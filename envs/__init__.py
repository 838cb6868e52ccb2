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
    "agentgym/WikiWorld-v0",
    "agentgym.envs.search.wikiworld:WikiWorldEnv",
    summary="Answer questions of one to four hops by search, from an encyclopedia made from a seed",
)
register(
    "agentgym/SearchQA-v0",
    "agentgym.envs.search.searchqa:SearchQAEnv",
    summary="Answer questions of HotpotQA, MuSiQue, 2Wiki or NQ by search: questions=FILE, any corpus",
)
register(
    "agentgym/WebBrowse-v0",
    "agentgym.envs.search.web_browse:WebBrowseEnv",
    summary="WikiWorld's questions, answered by browsing linked pages: search, follow links, find, go back",
)
register(
    "agentgym/ALFWorld-v0",
    "agentgym.envs.adapters.alfworld:ALFWorldEnv",
    summary="The real ALFWorld engine on games from a data folder",
    extra="alfworld",
    requires=("alfworld", "textworld"),
)
register(
    "agentgym/Gymnasium-v0",
    "agentgym.envs.adapters.gymnasium:GymnasiumEnv",
    summary="Any environment of Gymnasium with discrete or text actions, told in words",
)
register(
    "agentgym/BFCL-v0",
    "agentgym.envs.adapters.bfcl:BFCLEnv",
    summary="BFCL's multi-turn tasks: a user's requests, stateful APIs as tools, graded by state and results",
    extra="bfcl",
    requires=("bfcl_eval", "mpmath"),
    install="pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath",
)
register(
    "agentgym/Retail-v0",
    "agentgym.envs.retail.env:RetailEnv",
    summary="Support a shop's customers by tools under a policy, graded by the database: drawn from a seed",
)
register(
    "agentgym/Tau2Retail-v0",
    "agentgym.envs.retail.tau2:Tau2RetailEnv",
    summary="tau2-bench's retail tasks from its own files: policy, sixteen tools, graded by the database",
)
register(
    "agentgym/MiniGrid-v0",
    "agentgym.envs.adapters.minigrid:MiniGridEnv",
    summary="MiniGrid's and BabyAI's grid worlds in words; BabyAI's bot is the oracle",
    extra="minigrid",
    requires=("minigrid",),
)
register(
    "agentgym/ReasoningGym-v0",
    "agentgym.envs.adapters.reasoning_gym:ReasoningGymEnv",
    summary="reasoning-gym's generated problems, about a hundred kinds, graded by its own verifiers",
    extra="reasoning-gym",
    requires=("reasoning_gym",),
)
register(
    "agentgym/TextWorld-v0",
    "agentgym.envs.adapters.textworld:TextWorldEnv",
    summary="Text games that TextWorld generates from a seed, played by its own engine",
    extra="textworld",
    requires=("textworld",),
)
register(
    "agentgym/ScienceWorld-v0",
    "agentgym.envs.adapters.scienceworld:ScienceWorldEnv",
    summary="ScienceWorld's experiments, by its own engine; needs a Java runtime",
    extra="scienceworld",
    requires=("scienceworld",),
)
register(
    "agentgym/TextArena-v0",
    "agentgym.envs.adapters.textarena:TextArenaEnv",
    summary="TextArena's games of one player, or of two against a random or scripted one",
    extra="textarena",
    requires=("textarena",),
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
register(
    "agentgym/Negotiation-v0",
    "agentgym.envs.games.negotiation:NegotiationEnv",
    summary="Trade goods whose worth only you know; who gains more wins: against a scripted trader, or by self-play",
)
register(
    "agentgym/Maze-v0",
    "agentgym.envs.games.maze:MazeEnv",
    summary="Find the way out of a maze of which only the nearest walls are seen: generated from a seed",
)
register(
    "agentgym/TwentyQuestions-v0",
    "agentgym.envs.games.twenty_questions:TwentyQuestionsEnv",
    summary="Find out by yes/no questions which object is meant: objects and attributes from a seed",
)
register(
    "agentgym/GuessCity-v0",
    "agentgym.envs.games.guess_city:GuessCityEnv",
    summary="Find out by yes/no questions which city of a map is meant: the map comes from a seed",
)
register(
    "agentgym/CarDealer-v0",
    "agentgym.envs.games.car_dealer:CarDealerEnv",
    summary="Bargain with a scripted dealer over a car; the reward is the share of the surplus",
)
register(
    "agentgym/Wordle-v0",
    "agentgym.envs.games.wordle:WordleEnv",
    summary="Find a word of five letters in six guesses; no word is in two splits",
)
register(
    "agentgym/TryAgain-v0",
    "agentgym.envs.games.try_again:TryAgainEnv",
    summary="Single-turn questions with unary feedback: a wrong answer is told to be wrong, and one may try again",
)
register(
    "agentgym/ChessEndgame-v0",
    "agentgym.envs.games.chess_endgame:ChessEndgameEnv",
    summary="Mate a lone king with king and queen or rook, against the best defence",
    extra="chess",
    requires=("chess",),
)
register(
    "agentgym/AgentFlow-v0",
    "agentgym.envs.roles.agent_flow:AgentFlowEnv",
    summary="A planner, an executor, a verifier and a generator, one policy, solve the tasks of another environment",
)
register(
    "agentgym/SemiOnline-v0",
    "agentgym.envs.semi_online.env:SemiOnlineEnv",
    summary="Another environment's tasks along an expert's recorded actions, which stand in for wrong ones: UI-S1",
)
register(
    "agentgym/WebForms-v0",
    "agentgym.envs.gui.web_forms.env:WebFormsEnv",
    summary="Do one thing on one web page in a real browser: forms, tables, calendar, drag and drop, frames",
    extra="gui",
    requires=("playwright",),
)
register(
    "agentgym/MiniWoB-v0",
    "agentgym.envs.gui.miniwob.env:MiniWoBEnv",
    summary="MiniWoB++'s 130 tasks, one sentence on one small page each, in a real browser",
    extra="miniwob",
    requires=("miniwob", "playwright"),
)
register(
    "agentgym/WebShopGUI-v0",
    "agentgym.envs.gui.shop.env:WebShopGUIEnv",
    summary="Buy what an instruction asks for in a shop in a real browser: search, filters, cart, checkout",
    extra="gui,serve",
    requires=("playwright", "fastapi", "uvicorn"),
)
register(
    "agentgym/WebApp-v0",
    "agentgym.envs.gui.web_app.env:WebAppEnv",
    summary="Tasks in a self-hosted web application, from a description: start command, data, checks of its database",
    extra="gui",
    requires=("playwright",),
)
