// Begins an episode on a page of MiniWoB++ that has loaded, and says what its goal is. What its own page shows to people
// who try it out (the reward, the time left, where one has clicked, START) is taken off, and what writes there is
// replaced: none of it is for the agent. The first outcome counts. SEED and MODE are filled in by env.py.
(() => {
  document.body.removeEventListener("click", core.canvasDrawClick);  // it marks what was clicked, too
  for (const id of ["reward-display", "click-canvas", "sync-task-cover"]) document.getElementById(id)?.remove();
  const nothing = () => {};
  Object.assign(core, {
    canvasClear: nothing, countdownTimer: nothing, clearTimer: nothing, updateDisplay: nothing, startEpisode: nothing,
  });
  core.EPISODE_MAX_TIME = 1e9;
  core.endEpisode = (reward, isTimed, reason) => {
    if (WOB_DONE_GLOBAL) return;
    WOB_DONE_GLOBAL = true;
    WOB_RAW_REWARD_GLOBAL = WOB_REWARD_GLOBAL = reward;
    WOB_REWARD_REASON = reason;
  };
  core.setDataMode(__MODE__);
  Math.seedrandom(__SEED__);
  core.startEpisodeReal();
  document.getElementById("query")?.setAttribute("aria-hidden", "true");  // it is said as the goal
  const said = core.getUtterance();
  return typeof said === "string" ? said : said.utterance;
})()
