"""Games: for one player, and for two who learn by self-play."""
