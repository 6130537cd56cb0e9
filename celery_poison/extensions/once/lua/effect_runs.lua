-- effect_runs: whether the start that has an idempotency key still runs. Changes nothing.
-- KEYS[1] effect  hash
-- KEYS[2] running hash
-- KEYS[3] done    hash
-- RETURNS HELD (it does) | OK
-- JOURNALS nothing
local h = holder_of(KEYS[1], KEYS[2], KEYS[3])
return {h and h.runs and 'HELD' or 'OK'}
