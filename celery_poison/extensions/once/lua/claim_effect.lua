-- claim_effect: a start takes an idempotency key, unless another one has it or has returned under it.
-- KEYS[1] effect  hash
-- KEYS[2] running hash
-- KEYS[3] done    hash
-- ARGV[1] mid
-- ARGV[2] start
-- ARGV[3] lasts_ms  for which the claim of a start counts at most, whose end nobody tells
-- RETURNS OK (it is the start's) | DONE, id (a task has returned under it) | HELD, id (another start runs)
-- JOURNALS nothing
local e, h = start_of(ARGV[2]), holder_of(KEYS[1], KEYS[2], KEYS[3])
if h and h.runs and h.token ~= e.token then return {'HELD', h.id} end
if h and h.done == '1' then return {'DONE', h.id} end
-- Its start was sent on another connection, and may arrive only after this.
if not redis.call('HGET', KEYS[3], e.token) then redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) end
redis.call('HSET', KEYS[1], 'mid', ARGV[1], 'token', e.token, 'id', e.id, 'done', '')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'OK'}
