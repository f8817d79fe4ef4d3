"""Text generation: a method decodes answers to prompts on a device."""
