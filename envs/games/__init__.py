"""Games for one player, and for two players with self-play."""
