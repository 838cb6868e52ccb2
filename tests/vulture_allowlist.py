"""What looks unused to vulture and is not, each with who uses it. Names that are really used do not belong here."""

# --- called by a library
_.contains  # gymnasium.Space: `x in space`
_.list_commands  # typer's group: order of the commands in --help
_._root  # typer's callback: options before the command

_.pre_tokenizer  # tokenizers.Tokenizer: how text is split

# --- run by name
_.print_digests  # agentgym.check.determinism starts it in another process
_.HouseholdEnv  # the registry imports it by "module:Class"
_.ALFWorldEnv  # likewise

# --- for authors of environments and tools
_.PROCESS  # roles of reward parts: an author picks one
_.FORMAT
_.COST
_.tool_of  # the Tool behind a function, for those who build environments of their own kind

# --- for those who read records and trajectories
_.return_of_role
_.is_error
_.ABORT  # for engines that can be told to stop in the middle of a completion

# --- credit for other trainers than ours, and what a trainer asks of it
_.from_rows  # TurnTable from rows in any order
_.spo_prior  # a tracker's start from offline samples
_.credit_table
_.reference_answers  # composition rules about what only a trainer knows
_.entropy_signs
_.baseline_once
_.rollout_correction
_.ratio_level
_.one_gate
_.stale_data

# --- counters by which tests see that work was spared, and users that it was done
_.stats  # TorchEngine
_.num_ticks
_.num_prefill_tokens
_.num_reused_tokens
_.num_sampled_tokens
_.num_segments  # Session
_.num_loads  # ALFWorldEnv
_.worker_pid
