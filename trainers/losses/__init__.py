"""Policy losses, corrections and regularisers, which turn advantages into a gradient."""
