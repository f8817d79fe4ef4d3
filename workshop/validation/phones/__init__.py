"""Public measurements of language models on phones and boards, beside what the emulator predicts."""
