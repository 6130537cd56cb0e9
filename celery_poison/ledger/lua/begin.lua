-- begin: TBDL -> DLNG, of a task that must not run twice: its start is on record before its body begins.
-- KEYS[1] running hash
-- KEYS[2] lineage hash
-- KEYS[3] message hash
-- ARGV[1] mid
-- ARGV[2] start
-- RETURNS OK | STALE (another start of it has begun, a run of it was cut off, or it is in quarantine or given up)
-- JOURNALS nothing
local e, current = start_of(ARGV[2]), start_of(redis.call('HGET', KEYS[1], ARGV[1]))
local has_run = current and current.token ~= e.token and has_begun(current)
if has_run or redis.call('HGET', KEYS[2], 'cut_off') == ARGV[1] or is_kept(KEYS[3]) then return {'STALE'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'OK'}
