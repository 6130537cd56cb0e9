-- rollback: DLNG -> TBDL. The task put its message back; counts one failure (WAS-2).
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] lineage hash
-- KEYS[4] monitor_fence string
-- KEYS[5] journal stream
-- KEYS[6] message hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] cause
-- ARGV[5] fence   of the monitor that tells it, '' when its own worker does
-- ARGV[6] known   what else is known, see _journal.lua
-- RETURNS OK, raw lineage | STALE (the message has a newer start, for a monitor: or none; or it is in
--   quarantine, or given up) | FENCED
-- JOURNALS rolled_back
if fenced(KEYS[4], ARGV[5]) then return {'FENCED'} end
local e = cjson.decode(ARGV[3])
if redis.call('HGET', KEYS[3], 'last_token') == e[2] then return {'OK', redis.call('HGETALL', KEYS[3])} end
local current = entry_of(redis.call('HGET', KEYS[1], ARGV[2]))
if is_stale(current, e, ARGV[5]) or is_kept(KEYS[6]) then return {'STALE'} end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], e[2])
local now = now_ms()
local failures = redis.call('HINCRBY', KEYS[3], 'failures', 1)
redis.call('HSETNX', KEYS[3], 'first_seen', now)
redis.call('HSET', KEYS[3], 'id', e[8], 'mid', ARGV[2], 'task', e[9], 'queue', e[10], 'worker', e[3],
  'deliveries', e[6], 'last_seen', now, 'last_token', e[2], 'payload_bytes', e[13])
local line = {event = 'rolled_back', id = e[8], mid = ARGV[2], token = e[2], task = e[9],
  queue = e[10], worker = e[3], pid = e[4], state = 'TBDL', cause = ARGV[4], deliveries = e[6],
  failures = failures, runtime_ms = e[5] > 0 and math.max(0, now - e[5]) or '', payload_bytes = e[13]}
journal(KEYS[5], ARGV[1], add_known(line, ARGV[6]))
return {'OK', redis.call('HGETALL', KEYS[3])}
