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
-- ARGV[5] fence   of the monitor that reports it, '' when its own worker does
-- ARGV[6] known   other facts of the start, see _journal.lua
-- RETURNS OK, raw lineage | STALE (the message has a newer start, for a monitor: or none; or it is in
--   quarantine, or given up) | FENCED
-- JOURNALS rolled_back
if fenced(KEYS[4], ARGV[5]) then return {'FENCED'} end
local e = start_of(ARGV[3])
if redis.call('HGET', KEYS[3], 'last_token') == e.token then return {'OK', redis.call('HGETALL', KEYS[3])} end
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
if is_stale(current, e, ARGV[5]) or is_kept(KEYS[6]) then return {'STALE'} end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], e.token)
local now = now_ms()
local failures = redis.call('HINCRBY', KEYS[3], 'failures', 1)
redis.call('HSETNX', KEYS[3], 'first_seen', now)
redis.call('HSET', KEYS[3], 'id', e.id, 'mid', ARGV[2], 'task', e.task, 'queue', e.queue, 'worker', e.worker,
  'deliveries', e.deliveries, 'last_seen', now, 'last_token', e.token, 'charged', 'failure',
  'payload_bytes', e.payload_bytes)
-- A monitor does not know when it was put back.
local ran_ms = ran_until(ended_at('', ARGV[5], now), e, current)
local line = {event = 'rolled_back', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, pid = e.pid, state = 'TBDL', cause = ARGV[4], deliveries = e.deliveries,
  failures = failures, runtime_ms = ran_ms,
  payload_bytes = e.payload_bytes}
journal(KEYS[5], ARGV[1], add_known(line, ARGV[6]))
return {'OK', redis.call('HGETALL', KEYS[3])}
