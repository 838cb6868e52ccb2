"""Policy losses, corrections and regularisers: what turns advantages into a gradient."""
