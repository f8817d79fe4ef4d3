"""Where checkpoints come from and what their files hold."""
