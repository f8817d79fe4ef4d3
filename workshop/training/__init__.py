"""Drafts, heads, adapters, predictors and elastic orders in `assets/`, from checkpoints and texts.

| command | makes | from | on one core |
|---|---|---|---|
| train_draft | a small draft | a target's answers | 70 minutes of answers, 42 of training |
| train_eagle | an EAGLE-3 head | answers with hidden states | two rounds of 30 and 40 minutes |
| train_medusa | Medusa heads | answers with hidden states | 14 minutes |
| head_ranks | ranks from which Medusa's trees are searched | answers to MT-Bench | minutes |
| train_predictor | LEVER's early-exit predictor | answers, and a draft | a minute |
| elasticize | ElastiLM's order of units, anchor layers | ten texts | a minute |
| train_lora | adapters of a level | an elastic order, questions, texts | 25 minutes |
| train_tlm score | a head that scores words | texts, by surprisal | 8 minutes |
| train_tlm decision | a head that chooses levels | questions | 10 minutes, and labels |

`loop` is the training that all share, `phases` what those on a target's `answers` to `prompts` share,
`command` the options and the record beside each result. What was generated and the checkpoints lie in
`--work`, where a killed run continues.
"""
