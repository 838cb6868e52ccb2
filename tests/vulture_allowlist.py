"""What looks unused to vulture and is not, each with who uses it. Names that are really used do not belong here."""

# --- called by a library
_.reducer_override  # pickle.Pickler
_.allow_internet  # pydantic's models of Harbor's task.toml
_.allowed_hosts
_.artifacts
_.authors
_.build_timeout_sec
_.cpus
_.environment_mode
_.gpu_types
_.healthcheck
_.mcp_servers
_.multi_step_reward_strategy
_.network_mode
_.schema_version
_.skills_dir
_.storage_mb
_.tpu
_.contains  # gymnasium.Space: `x in space`
_.on_broken_pipe  # rich.console.Console
_.list_commands  # typer's group: order of the commands in --help
_._root  # typer's callback: options before the command
_.on_step_begin  # transformers.TrainerCallback
_.on_step_end
_.on_log
_.on_pre_optimizer_step
_.support_avx512bf16_for_cpu  # bitsandbytes.nn.Linear4bit reads it
_.read_metadata  # torch.distributed.checkpoint.FileSystemReader
_.skip_forward_signature_validation  # smolagents.Tool
_.output_type
_.do_POST  # http.server.BaseHTTPRequestHandler
_.log_message

_.force_recompile  # textworld.GameOptions: how a game is made
_.nb_rooms
_.nb_objects
_.quest_length
_.pre_tokenizer  # tokenizers.Tokenizer: how text is split

_.__path__  # Python's import system, of a package that is made up
_.__loader__  # Python's import system and inspect
_.__dir__  # dir() of the package agentgym

# --- run by name
_.doctor  # agentgym.cli.main imports commands by "module:function"
_.eval_
_.export
_.list_
_.mcp
_.serve_model
_.serve_search
_.variations  # ScienceWorld asks its worker process for it
_.print_digests  # agentgym.check.determinism starts it in another process
_.auxiliary_loss  # and their auxiliary losses
_.token_mask  # users' files decorate their token masks with it
_.player_outcome  # credit reads columns by their names
_.opmd_squared  # losses/catalogue.toml names these
_.kl_first
_.kl_convex
_.self_distill
_.prepare_m2po
_.prepare_batch_normalise
_.prepare_vcpo
_.prepare_bapo
_.prepare_refuel
_.self_taught
_.HouseholdEnv  # the registry imports it by "module:Class"

# --- the shop: parts of a score, for who evaluates
_.r_att
_.r_option
_.ALFWorldEnv  # likewise
_.BFCLEnv
_.BFCLSingleEnv
_.RetailEnv
_.Tau2RetailEnv
_.Tau2AirlineEnv
_.Tau2TelecomEnv
_.GAIAEnv
_.AgentBenchDBEnv
_.AppWorldEnv
_.WebArenaEnv
_.MathEnv
_.MathToolsEnv
_.ReasoningGymEnv
_.TextArenaEnv
_.VerifiersEnv
_.BrowserGymEnv
_.__class__  # isinstance reads it
_.TextWorldEnv
_.CodeEnv
_.PythonMathEnv
_.CodeRepairEnv
_.SWEEnv
_.CodeEnv
_.PythonMathEnv
_.CarDealerEnv
_.ChessEndgameEnv
_.GuessCityEnv
_.GuessNumberEnv
_.KuhnPokerEnv
_.MazeEnv
_.VisualMazeEnv
_.VisualGridEnv
_.PictureQuestionsEnv
_.AgentFlowEnv
_.SearchPlannerEnv
_.StrategistEnv
_.ManagedTeamEnv
_.SemiOnlineEnv
_.NegotiationEnv
_.TicTacToeEnv
_.TryAgainEnv
_.TwentyQuestionsEnv
_.WordleEnv
_.WebFormsEnv
_.WebShopGUIEnv
_.WebAppEnv

_.AgentGymWeights  # vLLM's --worker-extension-cls
_.agentgym_in_flight  # /collective_rpc of a vLLM server
_.agentgym_sums  # /collective_rpc of a vLLM server
_.num_hidden_parameters  # metrics: engine/num_hidden_parameters
_.num_updated  # metrics: engine/num_updated
_.agentgym_forget
_.agentgym_received
_.agentgym_load  # its /collective_rpc calls these
_.agentgym_checksum
_.agentgym_gpu
_.agentgym_nccl

# --- named in types alone
_.PreTrainedConfig  # trainers/types.py: aliases as strings, parameters of protocols
_.PreTrainedTokenizerBase
_.use_cache
_.strict
_.tool_calls  # keys of a message in the OpenAI protocol
_.tool_call_id

# --- for authors of environments and tools
_.PROCESS  # roles of reward parts: an author picks one
_.FORMAT
_.COST
_.tool_of  # the Tool behind a function, for those who build environments of their own kind

_.SearchTools  # mixins and retrievers of the live web: whoever builds an environment picks
_.SearxNG
_.BraveSearch
_.WebRetriever

# --- for those who read records and trajectories
_.is_error
_.ABORT  # for engines that can be told to stop in the middle of a completion

# --- credit for other trainers than ours, and what a trainer asks of it
_.from_rows  # TurnTable from rows in any order
_.spo_prior  # a tracker's start from offline samples
_.credit_table

# --- what `agentgym credit` shows, by the names of its columns, and gives by --json beyond them
_.credited_share
_.uncredited_group_share
_.phantom_share
_.anchor_share
_.advantage_std
_.sign_agreement
_.zero_advantage_share
_.left_out_share

# --- counters by which tests see that work was spared, and users that it was done
_.stats  # TorchEngine
_.num_ticks
_.num_prefill_tokens
_.num_reused_tokens
_.num_sampled_tokens
_.num_segments  # Session
_.num_loads  # ALFWorldEnv
_.num_left_out  # VllmEngine
_.num_readmitted
_.num_restarts  # engines and env workers on a cluster
_.num_hung
_.num_lost
_.scheduling_strategy  # options of an actor, which Ray reads
_.max_restarts
_.max_task_retries
_.max_concurrency
_.num_moved
_.probe_gap
_.worker_pid

# --- credit and environments for other trainers
_.CreditGRPOTrainer  # the user's, like the next three
_.environment_factory
_.episode_return
_.task_dataset
_.of_record  # FilteredGroup: a training step repeated from its record
_.completions  # TRL calls reward functions by these names
_.use_vllm  # read by TRL's loss
_._generate_and_score_completions  # called by TRL
_.__qualname__  # a tool as a method: what inspect and transformers read
_.__annotations__
_.__signature__

# --- grading: called by Python, unittest or the import system
_.__call__  # proxies
_.__getattr__
_.__len__
_.__bool__
_.addSuccess
_.addError
_.addSubTest
_.addSkip
_.addExpectedFailure
_.addUnexpectedSuccess
subtest
_.create_module

# --- for those who train along an expert's traces
_.record_traces

# --- for environments where the agent writes programs
_.grade_suite
_.BashTool

# --- browsers: for tests, measurements and who wants the memory back
_.has_chromium
_.close_browsers

# --- sandboxes
_.extraction_filter  # tarfile.TarFile: how entries are taken out
_.wait_until_ready  # SandboxPool: for who measures or wants a full pool
_.num_replaced
_.num_open

_.trainer_busy_share  # what benchmarks/simulator predicts, for who plans
_.staleness_max  # likewise

# --- search environments
_.WikiWorldEnv  # made by name
_.WikiSelfPlayEnv
_.CodeSelfPlayEnv
_.SkillChainEnv
_.WebBrowseEnv
_.SearchQAEnv
_.handle_starttag  # html.parser calls these
_.handle_endtag
_.handle_data
served_copy  # a part of the footprint, summed over the fields
cast_weights  # likewise
activations  # the same
# components that trainers/losses/catalogue.toml and trainers/engines/component.py name by "module:function"
_.divergence_rejection
_.batch_normalise
DistillOptions
_.torch_engine
ServersChannel
_.sapo
_.minpro
_.refuel
_.entropy_bonus
# pydantic calls the hook with it
handler
model_max_length  # a tokenizer's, for transformers
_.pytest_runtest_protocol  # a hook of pytest, benchmarks/suite
_.tool_parser_cls  # vLLM reads it, benchmarks/parity
_.descriptors  # read by name, benchmarks/soak
_.tempdir  # of the module tempfile, benchmarks/soak
_.pad_token  # of a tokenizer, benchmarks/vs_trl

idle_action  # agentgym.evals.policies names it in a string
passes_tests  # agentgym.scoring names it in a string

_.should_exit  # uvicorn reads it
_.seq  # a field of requests to the environment server
_.num_reconnects  # tests of the remote environment
_.drop_connection
McpToolEnv  # users derive from it
# the policy endpoint
_.should_exit  # uvicorn reads it
_.force_exit
_.capture_signals  # uvicorn calls it
_.call_tool  # for harnesses of users
_.get_template_vars  # mini-swe-agent calls it
_.default_user  # harbor reads it
_.SUPPORTS_CONCURRENT_SESSIONS  # OpenEnv's server reads it
_.reset_async  # and calls these
_.step_async
_.completed  # inspect reads it
_.NEEDS_CONTAINER  # verifiers reads it
_.mcp_urls

# named as text by the scorer judge
check_judge

# called by transformers' models
_.get_seq_length
_.get_mask_sizes
query_length
# used from scripts that train with TRL
rollout_dataset
EnvRollouts
# named by the registry's table of what machines may lack
why_no_isolation
# listed in docs/unmodified_agents.md by tests
_.partly
_.path_stats  # asked by importlib
# called by programs of users (docs/strategies.md)
_.comment
_.play_by
_.reply_rows  # named in losses/catalogue.toml
