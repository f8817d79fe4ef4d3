"""Distilling a small draft from a target's own answers: prompts, answers, training, evaluation."""
