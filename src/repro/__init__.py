"""repro: research on running language models on phones and boards, reproduced and compared."""
